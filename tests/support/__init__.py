"""What tests of several rooms share, by subject.

======================================  ========================================================================
``waiting``, ``ports``, ``schedules``   conditions, free ports, how much a run does, simulated schedules
``shells``                              one test body for the blocking and the asyncio client
``broker_driver``, ``durable_broker``,  the pure broker and store, with a clock that a test moves and a journal
``durable_store``                       that may crash
``disks``, ``raft_disks``               simulated disks of a server, and of a peer of the log
``server_clients``, ``websocket_wire``  clients of a running server that send what no library would
``server_processes``, ``raft_peers``    servers and peers as processes that can be killed
``scripted_peers``                      peers of the log that do what a test wants
``raft_trace_model``                    a small Raft that only reads traces
``sites``                               sites of the KvStore, and their clients
``proxy``, ``namespaces``               networks that break, and what a container sees
``keys``                                certificates and CURVE keys
``spark``, ``spark_gates``              Java, processes of a driver, tasks that wait; ``lonely_daemon`` starts workers
======================================  ========================================================================
"""
