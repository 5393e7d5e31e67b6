//! Engines that do not go together, and what is never done to them.

use kvplane_core::{EngineId, EngineKind};
use kvplane_doctor::{Code, Severity};
use kvplane_ingest::{Drained, EngineSpec, SharedRanks, Source};
use kvplane_sim::trtllm::{TrtConfig, TrtSim};
use kvplane_sim::{CompletionOptions, HashForm, SimConfig};

use crate::rig::{SHORT, codes, find, free_address, sim, spec_of, talk, with_source};

fn named(id: &str, spec: EngineSpec) -> EngineSpec {
    EngineSpec { id: EngineId::new(id), ..spec }
}

fn drained(url: &str) -> EngineSpec {
    let drained = Drained { url: url.to_owned(), buffer: None, ranks: SharedRanks::first(1) };
    with_source(EngineKind::Trtllm, Source::Drained(drained))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_empty_one_buffer_and_the_doctor_does_not() {
    let server = TrtSim::start(TrtConfig::default()).unwrap();
    let prompt: Vec<u32> = (0..256).collect();
    server.complete(&prompt, 1, &CompletionOptions::default()).unwrap();
    let url = format!("http://{}", server.http_address());
    let one = || drained(&url);
    assert_eq!(codes(&find(vec![named("a", one())], SHORT).await), []);
    let found = find(vec![named("a", one()), named("b", one())], SHORT).await;
    assert_eq!(codes(&found), [(Code::StolenDrain, Severity::Error)], "{found:#?}");
    assert!(server.drain().len() > 1, "what the doctor looked at is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffer_that_cannot_be_reached() {
    let url = free_address().replace("tcp", "http");
    let found = find(vec![drained(&url)], SHORT).await;
    assert_eq!(codes(&found)[0], (Code::EndpointUnreachable, Severity::Error), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_of_one_model_that_write_hashes_in_two_ways() {
    let integers = sim(SimConfig::default());
    let bytes = sim(SimConfig { hash_form: HashForm::Bytes32, ..SimConfig::default() });
    for engine in [&integers, &bytes] {
        talk(engine, 0, 1);
    }
    let found = find(vec![named("a", spec_of(&integers)), named("b", spec_of(&bytes))], SHORT).await;
    let mixed: Vec<_> = found.iter().filter(|finding| finding.code == Code::HashWidthMix).collect();
    assert_eq!((mixed.len(), mixed[0].severity), (1, Severity::Info), "{found:#?}");
}
