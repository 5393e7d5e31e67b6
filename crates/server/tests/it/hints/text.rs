//! Lookups that bring text, and templates.

use std::collections::HashMap;
use std::fs;

use kvplane_core::{Namespace, chain_hash, hash_blocks};
use kvplane_ingest::PlaneOptions;
use kvplane_prompt::{Json, ModelSpec, PromptInput, Prompts};
use kvplane_proto::inferencecache as proto;
use kvplane_server::Options;
use kvplane_testkit::model::model_directory;

use crate::hints::talk::{Hints, ask};
use crate::rig::Rig;

const TEXT: &str =
    "the end of the story, and another one: the user is waiting for an answer and a long one at that";

fn chain(ids: &[u32]) -> Vec<u64> {
    let (mut contents, mut last) = (Vec::new(), None);
    hash_blocks(ids, 16, Namespace::PLAIN, &mut contents);
    let mut next = |content| {
        let hash = chain_hash(last, content);
        last = Some(hash);
        hash
    };
    contents.into_iter().map(&mut next).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_looked_up_as_a_message_of_the_user_and_rendered_on_demand() {
    let directory = model_directory("hints");
    let model = ask().model_id;
    let prompts = Prompts::load(vec![ModelSpec::from_directory(&model, &directory)]).unwrap();
    let options = Options { prompts: prompts.clone(), ..Options::default() };
    let mut hints = Hints::of(Rig::serving(Vec::new(), PlaneOptions::default(), options).await).await;
    let message = format!(r#"[{{"role": "user", "content": "{TEXT}"}}]"#);
    let chat =
        |messages: &str| PromptInput::chat(Json::parse(messages.as_bytes()).unwrap(), None, None).unwrap();
    let ids = prompts.tokenize(&model, &chat(&message)).unwrap().ids;
    let hashes = chain(&ids);
    assert!(hashes.len() > 2);
    hints.hold("holder", &hashes).await;
    let by_text = proto::LookupRouteRequest { prompt_text: TEXT.to_owned(), ..ask() };
    let answer = hints.look_up(by_text.clone()).await;
    assert_eq!((answer.reason_code.as_str(), answer.token_ids.as_slice()), ("PREFIX_MATCH", ids.as_slice()));
    assert_eq!(answer.replica_scores[0].matched_tokens, 16 * hashes.len() as i32);
    // Ids come first, and are not sent back.
    let both = proto::LookupRouteRequest { token_ids: vec![1; 64], ..by_text.clone() };
    assert_eq!(hints.look_up(both).await.token_ids, [0_u32; 0]);
    for (request, reason) in [
        (proto::LookupRouteRequest { prompt_text: "x".repeat((1 << 20) + 1), ..ask() }, "too_long"),
        (
            proto::LookupRouteRequest { model_id: "other".to_owned(), ..by_text },
            "prompt_text_needs_tokenizer",
        ),
    ] {
        let answer = hints.client.lookup_route(request).await.unwrap();
        assert_eq!(answer.metadata().get("kvplane-reason").unwrap(), reason);
        assert_eq!(answer.get_ref().reason_code, "NO_HINT");
    }

    let render = |model: &str, variables: &[(&str, &str)]| proto::RenderTemplateRequest {
        template_ref: model.to_owned(),
        tenant_id: "red".to_owned(),
        variables: variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<HashMap<_, _>>(),
    };
    let expected = prompts.model(&model).unwrap().render(&chat(&message), 0).unwrap();
    for variables in [[("messages", message.as_str())], [("prompt", TEXT)]] {
        let reported = hints.client.render_template(render(&model, &variables)).await.unwrap().into_inner();
        assert_eq!(
            (reported.reason_code.as_str(), &reported.rendered_prompt[..]),
            ("OK", expected.as_bytes())
        );
        assert_eq!(reported.stable_prefix_hash[..], hashes.last().unwrap().to_be_bytes());
        assert_eq!((reported.template_revision.len(), &reported.tenant_namespace[..]), (16, &b"red"[..]));
    }
    // Other variables are the template's.
    let thinking = [("prompt", TEXT), ("thinking", "hm")];
    let reported = hints.client.render_template(render(&model, &thinking)).await.unwrap().into_inner();
    assert!(String::from_utf8_lossy(&reported.rendered_prompt).ends_with("<think>hm"));
    for (request, code) in [
        (render("other", &[("prompt", TEXT)]), "TEMPLATE_NOT_FOUND"),
        (render(&model, &[]), "RENDER_ERROR"),
        (render(&model, &[("messages", "[")]), "RENDER_ERROR"),
        (render(&model, &[("messages", r#"[{"role": "forbidden", "content": "x"}]"#)]), "RENDER_ERROR"),
    ] {
        let reported = hints.client.render_template(request).await.unwrap().into_inner();
        assert_eq!((reported.reason_code.as_str(), reported.rendered_prompt.len()), (code, 0));
    }
    fs::remove_dir_all(directory).unwrap();
}
