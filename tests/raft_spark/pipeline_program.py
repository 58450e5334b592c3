"""A driver of a pipeline in a process of its own, for tests that kill it: log -> Spark -> log.

    python pipeline_program.py CHECKPOINT SOURCE TARGET SOURCE_OPTIONS SPARK_CONFIGURATION GATES

It takes what the source has, in batches, and ends; the last three are JSON. GATES are the options of the sink with
gates, or none of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from raft_client.spark import register
from statestore_client.spark import local_session


def main(checkpoint: str, source: str, target: str, options: str, configuration: str, gates: str) -> None:
    """Run until there is nothing left."""
    config = {"spark.sql.shuffle.partitions": "2", **json.loads(configuration)}
    sink = {"seeds": target, "pipelineId": "copy", "indexColumn": "index", "checkpointLocation": checkpoint}
    gated = json.loads(gates)
    with local_session("pipeline", cores="2,3", config=config, log_level="OFF") as spark:
        register(spark)
        if gated:
            sys.path += map(str, Path(__file__).parents[:2])
            from gated_log import register_gated

            register_gated(spark)
        stream = spark.readStream.format("zmqraft").options(seeds=source, **json.loads(options)).load()
        writer = stream.where("type = 'state'").writeStream.format("gatedraft" if gated else "zmqraft")
        writer.options(**sink, **gated).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
