//! `kvplane query --tenant … --scheme …`: who should serve a prompt, asked as gateways ask.

use std::time::Duration;

use anyhow::{anyhow, bail};
use kvplane_client::endpoint;
use kvplane_core::{Namespace, chain_hash, hash_blocks};
use kvplane_proto::inferencecache as proto;
use kvplane_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use serde_json::json;

use super::page::{aligned, print};
use super::query::{numbers, read};
use super::{Failure, refused, usage};
use crate::args::{QueryArgs, TableOutput};

/// The default address of kvplane's gRPC server.
const DEFAULT_SERVER: &str = "http://127.0.0.1:50090";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn run(args: QueryArgs) -> Result<(), Failure> {
    let request = request(&args, &read(&args.file)?).map_err(usage)?;
    let server = args.server.as_deref().unwrap_or(DEFAULT_SERVER);
    let options = args.key.client_options().map_err(usage)?;
    let endpoint = endpoint(server, &options).map_err(|error| usage(anyhow!("--server {error}")))?;
    let channel = endpoint.connect().await.map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        anyhow!("no hint server answers at {server}: {cause}; is it a gRPC address?")
    })?;
    let mut client = InferenceCacheClient::with_interceptor(channel, options.bearer);
    let mut request = tonic::Request::new(request);
    request.set_timeout(PATIENCE);
    let response = client.lookup_route(request).await.map_err(|status| refused(server, &status))?;
    // Why a lookup could not be used; only kvplane says so.
    let unusable = response.metadata().get("kvplane-reason").and_then(|reason| reason.to_str().ok());
    let unusable = unusable.map(str::to_owned);
    print(&match args.output {
        TableOutput::Json => format!("{}\n", as_json(response.get_ref(), unusable.as_deref())),
        TableOutput::Table => table(response.get_ref(), unusable.as_deref()),
    })
}

/// The question. With a block size tokens are hashed here, and none leaves the process.
fn request(args: &QueryArgs, text: &str) -> anyhow::Result<proto::LookupRouteRequest> {
    let numbers = numbers(text)?;
    let mut request = proto::LookupRouteRequest {
        model_id: args.model.clone(),
        tenant_id: args.tenant.clone().unwrap_or_default(),
        hash_scheme: args.scheme.clone().unwrap_or_default(),
        adapter_id: args.adapter.clone().unwrap_or_default(),
        ..Default::default()
    };
    let chain: Vec<u64> = match (args.hashes, args.block_size) {
        (_, Some(0)) => bail!("--block-size must not be 0"),
        (true, _) if args.chained => numbers,
        (true, _) => chained(numbers),
        (false, block_size) => {
            let token = |(at, number): (usize, u64)| {
                u32::try_from(number)
                    .map_err(|_| anyhow!("number {at} is not a token id (0 to {})", u32::MAX))
            };
            let tokens = numbers.into_iter().enumerate().map(token).collect::<anyhow::Result<Vec<u32>>>()?;
            let Some(block_size) = block_size else {
                request.token_ids = tokens;
                return Ok(request);
            };
            let mut contents = Vec::new();
            hash_blocks(&tokens, block_size as usize, Namespace::PLAIN, &mut contents);
            chained(contents)
        }
    };
    let count = i32::try_from(args.block_size.unwrap_or_default())
        .map_err(|_| anyhow!("--block-size is too large"))?;
    request.block_token_counts = vec![count; chain.len()];
    request.block_hashes = chain.into_iter().map(|hash| hash.to_be_bytes().to_vec().into()).collect();
    Ok(request)
}

/// Hashes of prefixes from those of blocks.
fn chained(contents: Vec<u64>) -> Vec<u64> {
    let mut previous = None;
    let next = |content| {
        let hash = chain_hash(previous, content);
        previous = Some(hash);
        hash
    };
    contents.into_iter().map(next).collect()
}

/// What a tier is called.
fn tier(number: i32) -> String {
    if number > 0 { format!("T{number}") } else { "-".to_owned() }
}

/// One line per replica, best first, and why.
fn table(response: &proto::LookupRouteResponse, unusable: Option<&str>) -> String {
    let mut rows = vec![["REPLICA", "SCORE", "MATCHED", "FRESHNESS", "TIER"].map(str::to_owned)];
    rows.extend(response.replica_scores.iter().map(|score| {
        [
            score.replica_id.clone(),
            format!("{:.3}", score.score),
            score.matched_tokens.to_string(),
            format!("{:.3}", score.estimated_cache_hit_prob),
            tier(score.tier),
        ]
    }));
    let why = unusable.map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{}reason: {}{why}; {} us\n", aligned(&rows), response.reason_code, response.lookup_latency_us)
}

/// The answer under the protocol's names.
fn as_json(response: &proto::LookupRouteResponse, unusable: Option<&str>) -> serde_json::Value {
    let scores = response.replica_scores.iter().map(|score| {
        json!({
            "replica_id": score.replica_id,
            "score": score.score,
            "matched_tokens": score.matched_tokens,
            "estimated_cache_hit_prob": score.estimated_cache_hit_prob,
            "tier": score.tier,
        })
    });
    let mut answer = json!({
        "replica_scores": scores.collect::<Vec<_>>(),
        "reason_code": response.reason_code,
        "lookup_latency_us": response.lookup_latency_us,
        "adapter_id": response.adapter_id,
    });
    if let Some(reason) = unusable {
        answer["unusable"] = reason.into();
    }
    answer
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Command};

    fn args(words: &[&str]) -> QueryArgs {
        let words =
            ["kvplane", "query", "--tenant", "t", "--scheme", "vllm", "--model", "m"].iter().chain(words);
        match Args::try_parse_from(words).unwrap().command {
            Command::Query(query) => query,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn with_a_block_size_no_token_leaves() {
        let text = (1..=20).map(|id: u32| id.to_string()).collect::<Vec<_>>().join(" ");
        let asked = request(&args(&["--adapter", "lora", "--block-size", "16"]), &text).unwrap();
        let hash = 16_863_443_419_780_771_464_u64.to_be_bytes().to_vec();
        let expected = proto::LookupRouteRequest {
            model_id: "m".to_owned(),
            tenant_id: "t".to_owned(),
            hash_scheme: "vllm".to_owned(),
            adapter_id: "lora".to_owned(),
            block_hashes: vec![hash.into()],
            block_token_counts: vec![16],
            ..Default::default()
        };
        assert_eq!(asked, expected);
        let asked = request(&args(&[]), &text).unwrap();
        assert_eq!((asked.token_ids.len(), asked.block_hashes.len()), (20, 0));
        let by_hand =
            request(&args(&["--hashes", "--chained", "--block-size", "16"]), "16863443419780771464").unwrap();
        assert_eq!(by_hand.block_hashes, expected.block_hashes);
        for wrong in [&["--block-size", "0"][..], &["--block-size", "4294967295"]] {
            assert!(request(&args(wrong), "1 2").is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_table_says_who_and_why() {
        let score = proto::ReplicaScore {
            replica_id: "a".to_owned(),
            score: 96.0,
            matched_tokens: 128,
            estimated_cache_hit_prob: 1.0,
            tier: 1,
        };
        let mut response = proto::LookupRouteResponse {
            replica_scores: vec![score],
            reason_code: "PREFIX_MATCH".to_owned(),
            lookup_latency_us: 12,
            ..Default::default()
        };
        let expected = "REPLICA  SCORE   MATCHED  FRESHNESS  TIER\n\
            a        96.000  128      1.000      T1\n\
            reason: PREFIX_MATCH; 12 us\n";
        assert_eq!(table(&response, None), expected);
        response.replica_scores.clear();
        response.reason_code = "NO_HINT".to_owned();
        let expected = "REPLICA  SCORE  MATCHED  FRESHNESS  TIER\nreason: NO_HINT (too_short); 12 us\n";
        assert_eq!(table(&response, Some("too_short")), expected);
    }
}
