//! One application on the official Rust SDK: a session, its state store client, and lock and lease clients by name.
//!
//! It is driven line by line. A request is a JSON array of a command and its arguments on standard input; its answer is
//! one JSON object on standard output, with `value` and `version`, or with `error`, the SDK's error kind as it prints.
//! Keys, values and names are hexadecimal, times are milliseconds, versions and tokens are the SDK's own texts.
//! The program ends when its standard input does.

mod application;

use std::sync::Arc;

use azure_iot_operations_mqtt::aio::connection_settings::MqttConnectionSettingsBuilder;
use azure_iot_operations_mqtt::session::{Session, SessionOptionsBuilder};
use azure_iot_operations_protocol::application::ApplicationContextBuilder;
use azure_iot_operations_services::state_store::{Client, ClientOptionsBuilder};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use application::{Application, Failure, Request};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let settings = MqttConnectionSettingsBuilder::default()
        .hostname("127.0.0.1")
        .tcp_port(arguments[1].parse::<u16>()?)
        .client_id(arguments[2].clone())
        .use_tls(false)
        .build()?;
    let session = Session::new(SessionOptionsBuilder::default().connection_settings(settings).build()?)?;
    let client = Arc::new(Client::new(
        ApplicationContextBuilder::default().build()?,
        session.create_managed_client(),
        session.create_session_monitor(),
        ClientOptionsBuilder::default().build()?,
    )?);
    let exit = session.create_exit_handle();
    let application = Application::new(client, arguments[2].as_bytes());
    tokio::select! {
        ended = session.run() => ended?,
        served = serve(application) => { served?; exit.force_exit(); }
    }
    Ok(())
}

async fn serve(mut application: Application) -> Result<(), Failure> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut output = tokio::io::stdout();
    while let Some(line) = lines.next_line().await? {
        let answer = match application.answer(&Request::parse(&line)?).await {
            Ok(answer) => answer,
            Err(kind) => json!({ "error": kind }),
        };
        output.write_all(format!("{answer}\n").as_bytes()).await?;
        output.flush().await?;
    }
    Ok(())
}
