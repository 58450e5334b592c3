//! What each command asks of the SDK. An `Err` is the error kind, as the SDK prints it.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use azure_iot_operations_protocol::common::hybrid_logical_clock::HybridLogicalClock;
use azure_iot_operations_services::leased_lock::{self, lease, lock};
use azure_iot_operations_services::state_store::{
    self, Client, KeyObservation, Operation, Response, SetCondition, SetOptions,
};
use serde_json::{Value, json};
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(20);

pub type Failure = Box<dyn std::error::Error>;

/// A command and its arguments.
pub struct Request(Vec<Value>);

impl Request {
    pub fn parse(line: &str) -> Result<Self, Failure> {
        Ok(Self(serde_json::from_str(line)?))
    }

    fn text(&self, index: usize) -> Option<&str> {
        self.0.get(index).and_then(Value::as_str)
    }

    fn bytes(&self, index: usize) -> Vec<u8> {
        let digits = self.text(index).expect("a hexadecimal argument");
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
    }

    fn time(&self, index: usize) -> Option<Duration> {
        self.0.get(index).and_then(Value::as_u64).map(Duration::from_millis)
    }

    fn token(&self, index: usize) -> Option<HybridLogicalClock> {
        self.text(index).map(|text| text.parse().expect("a token that the SDK wrote"))
    }
}

pub struct Application {
    client: Arc<Client>,
    holder: Vec<u8>,
    locks: HashMap<Vec<u8>, lock::Client>,
    leases: HashMap<Vec<u8>, lease::Client>,
    observations: HashMap<Vec<u8>, KeyObservation>,
}

impl Application {
    pub fn new(client: Arc<Client>, holder: &[u8]) -> Self {
        let (locks, leases, observations) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { client, holder: holder.to_vec(), locks, leases, observations }
    }

    pub async fn answer(&mut self, request: &Request) -> Result<Value, String> {
        match request.text(0).expect("a command") {
            "get" => {
                let got = self.client.get(request.bytes(1), TIMEOUT).await.map_err(store_error)?;
                Ok(versioned(&got, json!(got.response.as_deref().map(hex))))
            }
            "set" => {
                let options = SetOptions {
                    set_condition: condition(request.text(3)),
                    expires: request.time(4),
                    ..Default::default()
                };
                let (key, value, token) = (request.bytes(1), request.bytes(2), request.token(5));
                let set = self.client.set(key, value, TIMEOUT, token, options).await.map_err(store_error)?;
                Ok(versioned(&set, json!(set.response)))
            }
            "del" => {
                let (key, token) = (request.bytes(1), request.token(2));
                let deleted = self.client.del(key, token, TIMEOUT).await.map_err(store_error)?;
                Ok(versioned(&deleted, json!(deleted.response)))
            }
            "vdel" => {
                let (key, value, token) = (request.bytes(1), request.bytes(2), request.token(3));
                let deleted = self.client.vdel(key, value, token, TIMEOUT).await.map_err(store_error)?;
                Ok(versioned(&deleted, json!(deleted.response)))
            }
            "keys" => {
                let mut pager = self.client.list_keys(request.bytes(1), TIMEOUT).map_err(store_error)?;
                let mut keys = Vec::new();
                while let Some(page) = pager.next().await.map_err(store_error)? {
                    keys.extend(page.iter().map(|key| hex(key)));
                }
                Ok(json!({ "value": keys }))
            }
            "observe" => {
                let observed = self.client.observe(request.bytes(1), TIMEOUT).await.map_err(store_error)?;
                self.observations.insert(request.bytes(1), observed.response);
                Ok(json!({ "value": null }))
            }
            "unobserve" => {
                let ended = self.client.unobserve(request.bytes(1), TIMEOUT).await.map_err(store_error)?;
                self.observations.remove(&request.bytes(1));
                Ok(json!({ "value": ended.response }))
            }
            "notification" => Ok(self.notification(&request.bytes(1)).await),
            "lock" => {
                let (expiry, renewal) = (request.time(2).expect("an expiry"), request.time(3));
                let token = self.lock(request.bytes(1)).lock(expiry, TIMEOUT, renewal).await.map_err(lock_error)?;
                Ok(json!({ "version": token.to_string() }))
            }
            "unlock" => {
                self.lock(request.bytes(1)).unlock(TIMEOUT).await.map_err(lock_error)?;
                Ok(json!({ "value": null }))
            }
            "acquire" => {
                let (expiry, renewal) = (request.time(2).expect("an expiry"), request.time(3));
                let token = self.lease(request.bytes(1)).acquire(expiry, TIMEOUT, renewal).await.map_err(lock_error)?;
                Ok(json!({ "version": token.to_string() }))
            }
            "release" => {
                self.lease(request.bytes(1)).release(TIMEOUT).await.map_err(lock_error)?;
                Ok(json!({ "value": null }))
            }
            "holder" => {
                let holder = self.lease(request.bytes(1)).get_holder(TIMEOUT).await.map_err(lock_error)?;
                Ok(json!({ "value": holder.as_deref().map(hex) }))
            }
            "token" => {
                let name = request.bytes(1);
                let of_lock = self.locks.get(&name).and_then(lock::Client::current_lock_fencing_token);
                let token = of_lock.or(self.leases.get(&name).and_then(lease::Client::current_lease_fencing_token));
                Ok(json!({ "version": token.map(|token| token.to_string()) }))
            }
            command => panic!("unknown command {command}"),
        }
    }

    /// The next change of an observed key; `null` at the end of the observation, or when nothing comes.
    async fn notification(&mut self, key: &[u8]) -> Value {
        let observation = self.observations.get_mut(key).expect("an observed key");
        let Ok(Some((change, _))) = timeout(TIMEOUT, observation.recv_notification()).await else {
            return Value::Null;
        };
        let value = match &change.operation {
            Operation::Set(value) => Some(hex(value)),
            Operation::Del => None,
        };
        json!({ "key": hex(&change.key), "value": value, "version": change.version.to_string() })
    }

    fn lock(&mut self, name: Vec<u8>) -> &lock::Client {
        let (client, holder) = (self.client.clone(), self.holder.clone());
        self.locks
            .entry(name.clone())
            .or_insert_with(|| lock::Client::new(client, name, holder).expect("names that are not empty"))
    }

    fn lease(&mut self, name: Vec<u8>) -> &lease::Client {
        let (client, holder) = (self.client.clone(), self.holder.clone());
        self.leases
            .entry(name.clone())
            .or_insert_with(|| lease::Client::new(client, name, holder).expect("names that are not empty"))
    }
}

fn versioned<T: Debug>(response: &Response<T>, value: Value) -> Value {
    json!({ "value": value, "version": response.version.as_ref().map(HybridLogicalClock::to_string) })
}

fn condition(name: Option<&str>) -> SetCondition {
    match name {
        Some("nx") => SetCondition::OnlyIfDoesNotExist,
        Some("nex") => SetCondition::OnlyIfEqualOrDoesNotExist,
        _ => SetCondition::Unconditional,
    }
}

fn store_error(error: state_store::Error) -> String {
    format!("{:?}", error.kind())
}

fn lock_error(error: leased_lock::Error) -> String {
    format!("{:?}", error.kind())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
