//! Lookups that bring tokens: hashed here as everybody hashes them.

use kvplane_proto::inferencecache as proto;

use crate::hints::talk::{Hints, ask};

/// Prompts in blocks of 16, and the hashes that peers agree on.
const VECTORS: [(std::ops::Range<u32>, &[u64]); 4] = [
    (1..17, &[16_863_443_419_780_771_464]),
    (1..33, &[16_863_443_419_780_771_464, 12_466_389_667_045_779_788]),
    (
        0..64,
        &[
            15_310_707_395_893_867_146,
            13_769_157_705_258_532_664,
            11_879_827_756_109_914_528,
            3_888_788_807_566_526_800,
        ],
    ),
    (100..120, &[10_823_191_264_391_160_519]),
];

fn tokens(ids: impl IntoIterator<Item = u32>) -> proto::LookupRouteRequest {
    proto::LookupRouteRequest { token_ids: ids.into_iter().collect(), ..ask() }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_found_under_the_hashes_that_peers_agree_on() {
    for (prompt, hashes) in VECTORS {
        let mut hints = Hints::with(|options| options.policies.default.minimum_matched_tokens = 16).await;
        hints.hold("holder", hashes).await;
        hints.hold("stranger", &[1]).await;
        let answer = hints.look_up(tokens(prompt)).await;
        assert_eq!(answer.reason_code, "PREFIX_MATCH");
        assert_eq!(answer.replica_scores.len(), 1);
        assert_eq!(answer.replica_scores[0].matched_tokens, hashes.len() as i32 * 16);
        assert_eq!(answer.token_ids, [0_u32; 0], "only what was made of text is sent back");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn long_prompts_are_answered_and_longer_ones_get_no_hint() {
    let mut hints = Hints::serve().await;
    hints.hold("holder", VECTORS[2].1).await;
    // As many tokens as fit into a message.
    let longest = 1_048_576;
    let prompt = (0..64).chain(std::iter::repeat(7)).take(longest);
    assert_eq!(hints.look_up(tokens(prompt)).await.replica_scores[0].matched_tokens, 64);
    let prompt = (0..64).chain(std::iter::repeat(7)).take(longest + 1);
    let answer = hints.client.lookup_route(tokens(prompt)).await.unwrap();
    assert_eq!(answer.metadata().get("kvplane-reason").unwrap(), "too_long");
    assert_eq!(answer.get_ref().reason_code, "NO_HINT");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_is_named_and_counted() {
    let mut hints = Hints::serve().await;
    hints.hold("holder", VECTORS[2].1).await;
    let unequal = proto::LookupRouteRequest { block_token_counts: vec![1], ..ask() };
    let negative =
        proto::LookupRouteRequest { block_token_counts: vec![-1], ..crate::hints::talk::chain(&[1]) };
    let text = proto::LookupRouteRequest { prompt_text: "a secret".to_owned(), ..ask() };
    for (request, reason) in [
        (text, "prompt_text_needs_tokenizer"),
        (unequal, "unequal_arrays"),
        (negative, "negative_count"),
        (tokens(0..15), "too_short"),
        (ask(), "no_prompt"),
    ] {
        let answer = hints.client.lookup_route(request).await.unwrap();
        assert_eq!(answer.metadata().get("kvplane-reason").unwrap(), reason);
        assert_eq!(answer.get_ref().reason_code, "NO_HINT", "{reason}");
        assert!(answer.get_ref().replica_scores.is_empty(), "{reason}");
        let counted = format!("kvplane_hints_unusable_lookups_total{{reason=\"{reason}\"}}");
        assert!((hints.metric(&counted).await - 1.0).abs() < 0.5, "{reason}");
    }
    assert!(!hints.metrics().await.contains("secret"));
    let used = hints.client.lookup_route(tokens(0..64)).await.unwrap();
    assert!(used.metadata().get("kvplane-reason").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_as_large_as_configured() {
    let mut hints = Hints::with(|options| {
        options.block_size = 32;
        options.policies.default.minimum_matched_tokens = 0;
    })
    .await;
    let content: Vec<u32> = (0..32).collect();
    let hash = kvplane_core::ContentHasher::default().plain(&content, kvplane_core::Namespace::PLAIN);
    hints.hold("holder", &[hash]).await;
    let answer = hints.look_up(tokens(0..40)).await;
    assert_eq!((answer.reason_code.as_str(), answer.replica_scores[0].matched_tokens), ("PREFIX_MATCH", 32));
}
