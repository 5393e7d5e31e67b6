//! What engines say of themselves, in the messages of their services.

use std::collections::BTreeMap;

use prost_types::value::Kind;
use prost_types::{Struct, Timestamp, Value};

use crate::operate::{Facts, Load};

pub(super) mod vllm {
    //! vLLM's.

    use kvplane_proto::engines::vllm::{GetLoadsResponse, GetServerInfoResponse, SchedulerLoad};

    use super::{Facts, Load, running, timestamp};

    pub(crate) fn info(facts: &Facts, loads: &[Load]) -> GetServerInfoResponse {
        GetServerInfoResponse {
            active_requests: running(loads) as u32,
            uptime_seconds: facts.uptime(),
            server_type: "vllm-grpc".to_owned(),
            data_parallel_size: facts.ranks as i32,
            block_size: facts.block_size as i32,
            ..GetServerInfoResponse::default()
        }
    }

    pub(crate) fn loads(facts: &Facts, loads: &[Load]) -> GetLoadsResponse {
        let load = |load: &Load| SchedulerLoad {
            dp_rank: load.rank as i32,
            num_running_reqs: load.running as i32,
            num_total_reqs: load.running as i32,
            num_used_tokens: load.used_tokens as i32,
            max_total_num_tokens: load.room as i32,
            token_usage: load.usage(),
            ..SchedulerLoad::default()
        };
        GetLoadsResponse {
            timestamp: timestamp(),
            version: facts.release.to_owned(),
            dp_rank_count: facts.ranks as i32,
            loads: loads.iter().map(load).collect(),
        }
    }
}

pub(super) mod sglang {
    //! `SGLang`'s.

    use kvplane_proto::engines::sglang::{
        AggregateMetrics, GetLoadsResponse, GetServerInfoResponse, SchedulerLoad,
    };

    use super::{Facts, Load, args, running, started, timestamp, usage};

    pub(crate) fn info(facts: &Facts, loads: &[Load]) -> GetServerInfoResponse {
        GetServerInfoResponse {
            server_args: Some(args(facts)),
            active_requests: running(loads) as i32,
            uptime_seconds: facts.uptime(),
            sglang_version: facts.release.to_owned(),
            server_type: "grpc".to_owned(),
            start_time: Some(started(facts)),
            max_total_num_tokens: facts.room() as i32,
            ..GetServerInfoResponse::default()
        }
    }

    pub(crate) fn loads(facts: &Facts, loads: &[Load]) -> GetLoadsResponse {
        let load = |load: &Load| SchedulerLoad {
            dp_rank: load.rank as i32,
            num_running_reqs: load.running as i32,
            num_total_reqs: load.running as i32,
            num_used_tokens: load.used_tokens as i32,
            max_total_num_tokens: load.room as i32,
            token_usage: load.usage(),
            ..SchedulerLoad::default()
        };
        GetLoadsResponse {
            timestamp: timestamp(),
            version: facts.release.to_owned(),
            dp_rank_count: facts.ranks as i32,
            loads: loads.iter().map(load).collect(),
            aggregate: Some(AggregateMetrics {
                total_running_reqs: running(loads) as i32,
                total_reqs: running(loads) as i32,
                avg_token_usage: usage(loads),
                ..AggregateMetrics::default()
            }),
        }
    }
}

pub(super) mod tokenspeed {
    //! `TokenSpeed`'s.

    use kvplane_proto::engines::tokenspeed::{
        AggregateMetrics, GetLoadsResponse, GetServerInfoResponse, SchedulerLoad,
    };

    use super::{Facts, Load, args, running, started, timestamp, usage};

    pub(crate) fn info(facts: &Facts, loads: &[Load]) -> GetServerInfoResponse {
        GetServerInfoResponse {
            server_args: Some(args(facts)),
            active_requests: running(loads) as i32,
            uptime_seconds: facts.uptime(),
            max_total_num_tokens: facts.room() as i32,
            tokenspeed_version: facts.release.to_owned(),
            start_time: Some(started(facts)),
            ..GetServerInfoResponse::default()
        }
    }

    pub(crate) fn loads(facts: &Facts, loads: &[Load]) -> GetLoadsResponse {
        let load = |load: &Load| SchedulerLoad {
            dp_rank: load.rank as i32,
            num_running_reqs: load.running as i32,
            num_total_reqs: load.running as i32,
            num_used_tokens: load.used_tokens as i32,
            max_total_num_tokens: load.room as i32,
            token_usage: load.usage(),
            ..SchedulerLoad::default()
        };
        GetLoadsResponse {
            timestamp: timestamp(),
            version: facts.release.to_owned(),
            dp_rank_count: facts.ranks as i32,
            loads: loads.iter().map(load).collect(),
            aggregate: Some(AggregateMetrics {
                total_running_reqs: running(loads) as i32,
                total_reqs: running(loads) as i32,
                avg_token_usage: usage(loads),
                ..AggregateMetrics::default()
            }),
        }
    }
}

fn running(loads: &[Load]) -> usize {
    loads.iter().map(|load| load.running).sum()
}

fn usage(loads: &[Load]) -> f64 {
    loads.iter().map(Load::usage).sum::<f64>() / loads.len().max(1) as f64
}

/// The arguments that a server of `SGLang`'s make was started with.
fn args(facts: &Facts) -> Struct {
    let number = |number: f64| Value { kind: Some(Kind::NumberValue(number)) };
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let fields: BTreeMap<String, Value> = BTreeMap::from([
        ("model_path".to_owned(), text(&facts.model)),
        ("served_model_name".to_owned(), text(&facts.model)),
        ("page_size".to_owned(), number(facts.block_size as f64)),
        ("dp_size".to_owned(), number(f64::from(facts.ranks))),
    ]);
    Struct { fields }
}

fn started(facts: &Facts) -> Timestamp {
    Timestamp { seconds: facts.start_time as i64, nanos: 0 }
}

/// Now, as engines write it.
fn timestamp() -> String {
    Timestamp::from(std::time::UNIX_EPOCH + kvplane_runtime::unix_time()).to_string()
}
