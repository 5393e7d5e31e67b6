//! The table of who supports what: it leaves nothing out, and the documentation shows it as it is.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use kvplane_core::EngineKind;
use kvplane_ops::{Call, Reads, Service, Speaker, Support, Transport, VerbName, support};

const BEGIN: &str = "<!-- The table of crates/ops/src/support.rs: its test compares. -->\n";
const END: &str = "<!-- End of the table. -->\n";

#[test]
fn everybody_has_a_way_or_a_sentence_for_every_verb() {
    assert_eq!(Speaker::all().count(), EngineKind::ALL.len() + Service::ALL.len());
    for speaker in Speaker::all() {
        for verb in VerbName::ALL {
            match support(speaker, verb) {
                Support::Ways(ways) => {
                    assert!(!ways.is_empty());
                    for way in ways {
                        let over_grpc = matches!(way.call, Call::Rpc(_));
                        assert_eq!(over_grpc, speaker.transport() == Transport::Grpc, "{speaker:?} {verb}");
                        let message = matches!(
                            way.reads,
                            Reads::Success | Reads::Message | Reads::Healthy | Reads::HealthStatus
                        );
                        assert_eq!(message, over_grpc, "{speaker:?} {verb}");
                        assert!(way.missing.contains(' '));
                    }
                }
                Support::No(why) => assert!(why.contains(' '), "{speaker:?} {verb}"),
            }
        }
    }
}

/// A method that is called and not in the contract would be answered with UNIMPLEMENTED for ever.
#[test]
fn every_method_is_in_the_contracts() {
    let contracts = prost_reflect::DescriptorPool::decode(kvplane_proto::DESCRIPTORS).unwrap();
    for service in Service::ALL {
        let contract = contracts.get_service_by_name(service.name()).unwrap();
        let methods: Vec<_> = contract.methods().map(|method| method.name().to_owned()).collect();
        for verb in VerbName::ALL {
            let Support::Ways(ways) = support(Speaker::Grpc(service), verb) else { continue };
            for way in ways {
                let Call::Rpc(method) = way.call else { panic!("{:?}", way.call) };
                assert!(methods.iter().any(|known| known == method), "{service:?} {method}");
            }
        }
    }
}

#[test]
fn the_documentation_shows_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/operations.md");
    let page = std::fs::read_to_string(page).unwrap();
    let shown = page.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map(|(table, _)| table);
    let table = table();
    assert!(shown == Some(&table), "docs/reference/operations.md should have\n\n{BEGIN}{table}{END}");
}

fn table() -> String {
    let mut reasons = Vec::new();
    let mut table = "| engine | over |".to_owned();
    for verb in VerbName::ALL {
        table += &format!(" {verb} |");
    }
    table += &format!("\n|---|---|{}\n", "---|".repeat(VerbName::ALL.len()));
    for speaker in Speaker::all() {
        table += &format!("| {} | {} |", speaker.name(), speaker.transport().as_str());
        for verb in VerbName::ALL {
            table += &format!(" {} |", cell(support(speaker, verb), &mut reasons));
        }
        table += "\n";
    }
    table += "\n";
    for (number, reason) in reasons.iter().enumerate() {
        table += &format!("{}. {reason}\n", number + 1);
    }
    table
}

fn cell(support: Support, reasons: &mut Vec<&'static str>) -> String {
    match support {
        Support::Ways(ways) => {
            let calls = ways.iter().map(|way| match way.call {
                Call::Rpc(method) => format!("`{method}`"),
                call => format!("`{call}`"),
            });
            calls.collect::<Vec<_>>().join(", else ")
        }
        Support::No(why) => {
            let known = reasons.iter().position(|known| *known == why);
            let number = known.unwrap_or_else(|| {
                reasons.push(why);
                reasons.len() - 1
            });
            format!("no ({})", number + 1)
        }
    }
}
