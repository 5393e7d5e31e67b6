//! Engines that say themselves what is wrong.

use kvplane_core::EngineKind;
use kvplane_doctor::{Code, Severity};
use kvplane_ingest::EngineSpec;
use kvplane_sim::SimConfig;
use kvplane_wire::Profile;

use crate::rig::{
    SHORT, asked, codes, find, find_while, free_address, http_of, pages, published, ranks, sim, spec_of, talk,
};

const ERROR: Severity = Severity::Error;
const WARNING: Severity = Severity::Warning;

#[tokio::test(flavor = "multi_thread")]
async fn events_that_are_off() {
    let vllm = pages(&[("/kv_event_sources", r#"{"0": {"enable_kv_cache_events": false}}"#)]).await;
    let sglang = pages(&[("/server_info", r#"{"version": "0.5.23", "kv_events": null}"#)]).await;
    for (kind, http) in [(EngineKind::Vllm, vllm), (EngineKind::Sglang, sglang)] {
        let found = find(vec![asked(kind, http.clone())], SHORT).await;
        assert_eq!(codes(&found), [(Code::EventsDisabled, ERROR)], "{found:#?}");
        // Also where the address of the events is configured: nothing else has to be said of it.
        let spec = EngineSpec { kind, http: Some(http), ..published(&free_address(), None) };
        let found = find(vec![spec], SHORT).await;
        assert_eq!(codes(&found), [(Code::EventsDisabled, ERROR)], "{found:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_that_are_not_reused() {
    let vllm = pages(&[(
        "/metrics",
        "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\"} 1.0\n",
    )])
    .await;
    let sglang = pages(&[("/server_info", r#"{"version": "0.5.23", "disable_radix_cache": true}"#)]).await;
    for (kind, http) in [(EngineKind::Vllm, vllm), (EngineKind::Sglang, sglang)] {
        let spec = EngineSpec { kind, http: Some(http), ..published(&free_address(), None) };
        let found = find(vec![spec], SHORT).await;
        assert_eq!(codes(&found), [(Code::PrefixCachingOff, ERROR)], "{found:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_nobody_listens_to() {
    let engine = sim(SimConfig { ranks: 2, ..SimConfig::default() });
    let mut spec = spec_of(&engine);
    ranks(&mut spec).truncate(1);
    spec.http = Some(http_of(&engine));
    let found = find_while(&engine, spec, |engine| talk(engine, 0, 1)).await;
    assert_eq!(codes(&found), [(Code::RankMissing, ERROR)], "{found:#?}");
    assert!(found[0].seen.contains("rank 1") && found[0].todo.contains("ranks = 2"), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_that_are_known_to_be_broken() {
    let broken = Code::EngineVersionBroken;
    // Of vLLM it matters for as long as nothing was heard.
    for (profile, expected) in [(Profile::Vllm0_9, vec![]), (Profile::Sglang0_4_7, vec![(broken, ERROR)])] {
        let engine = sim(SimConfig { profile, ..SimConfig::default() });
        let spec = EngineSpec { http: Some(http_of(&engine)), ..spec_of(&engine) };
        let found = find_while(&engine, spec, |engine| talk(engine, 0, 1)).await;
        assert_eq!(codes(&found), expected, "{profile:?}: {found:#?}");
    }
    let engine = sim(SimConfig { profile: Profile::Vllm0_9, ..SimConfig::default() });
    let spec = EngineSpec { http: Some(http_of(&engine)), ..spec_of(&engine) };
    let found = find(vec![spec], SHORT).await;
    assert_eq!(codes(&found), [(broken, WARNING), (Code::Silent, Severity::Info)], "{found:#?}");
    // One that has its page only under the old name.
    let http = pages(&[("/get_server_info", r#"{"version": "0.4.9", "disable_radix_cache": true}"#)]).await;
    let spec = EngineSpec { kind: EngineKind::Sglang, http: Some(http), ..published(&free_address(), None) };
    let found = find(vec![spec], SHORT).await;
    let off = [broken, Code::PrefixCachingOff];
    assert_eq!(codes(&found), off.map(|code| (code, ERROR)), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_model() {
    let http = pages(&[("/v1/models", r#"{"data": [{"id": "llama"}, {"id": "adapter"}]}"#)]).await;
    for (model, expected) in
        [("llama", None), ("adapter", None), ("gemma", Some("gemma")), ("", Some("no model"))]
    {
        let engine = sim(SimConfig::default());
        let spec = EngineSpec { model: model.to_owned(), http: Some(http.clone()), ..spec_of(&engine) };
        let found = find_while(&engine, spec, |engine| talk(engine, 0, 1)).await;
        assert_eq!(!found.is_empty(), expected.is_some(), "{found:#?}");
        if let Some(word) = expected {
            assert_eq!(codes(&found), [(Code::ModelUnknown, WARNING)], "{found:#?}");
            assert!(found[0].seen.contains(word) && found[0].seen.contains("llama"), "{found:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_cannot_say_where_they_publish() {
    let old = pages(&[("/version", r#"{"version": "0.30.0"}"#)]).await;
    let found = find(vec![asked(EngineKind::Vllm, old)], SHORT).await;
    assert_eq!(codes(&found), [(Code::SourcesUntold, ERROR)], "{found:#?}");
    let nonsense = pages(&[("/kv_event_sources", "<html>")]).await;
    let found = find(vec![asked(EngineKind::Vllm, nonsense)], SHORT).await;
    assert_eq!(codes(&found), [(Code::SourcesUntold, ERROR)], "{found:#?}");
    let nobody = free_address().replace("tcp", "http");
    let found = find(vec![asked(EngineKind::Vllm, nobody)], SHORT).await;
    assert_eq!(codes(&found), [(Code::EndpointUnreachable, ERROR)], "{found:#?}");
}
