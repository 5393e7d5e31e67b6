use super::*;

fn sliding(blocks: u32) -> Side {
    Side { group: Some(0), kind: SpecKind::Sliding, need: Need::Run { blocks, stride: 1, tail: false } }
}

#[test]
fn a_window_needs_its_last_blocks_and_all_where_there_are_fewer() {
    let resumption = Resumption { sides: vec![sliding(2)], ..Resumption::default() };
    let held = [true, true, false, true, true, false];
    let resumable = |depth| resumption.resumable(depth, |at, _| held[at as usize]);
    assert_eq!([0, 1, 2, 3, 4, 5, 6].map(resumable), [0, 1, 2, 2, 2, 5, 5]);
}

#[test]
fn a_state_counts_exactly_where_it_is_and_strides_align() {
    let state =
        Side { group: Some(1), kind: SpecKind::State, need: Need::Run { blocks: 1, stride: 2, tail: false } };
    let resumption = Resumption { sides: vec![state], ..Resumption::default() };
    let resumable = |depth| resumption.resumable(depth, |at, _| at == 3);
    assert_eq!([3, 4, 5, 7].map(resumable), [0, 4, 4, 4]);
}

#[test]
fn a_prefix_has_no_hole_and_the_last_block_may_be_given_up() {
    let all = Side { group: Some(1), kind: SpecKind::Full, need: Need::Prefix { stride: 1 } };
    let mut resumption = Resumption { sides: vec![all], ..Resumption::default() };
    assert_eq!(resumption.resumable(5, |at, _| at != 3), 3);
    resumption.drops_last = true;
    assert_eq!(resumption.resumable(5, |at, _| at != 3), 2);
    assert_eq!(resumption.resumable(5, |_, _| false), 0);
}

#[test]
fn a_colder_tier_counts_in_whole_units() {
    let resumption = Resumption { units: [1, 4, 4, 4], ..Resumption::default() };
    assert_eq!(resumption.whole_units([6, 7, 7, 7]), [6, 6, 6, 6]);
    assert_eq!(resumption.whole_units([6, 9, 13, 13]), [6, 6, 12, 12], "two blocks are no unit");
    assert_eq!(resumption.whole_units([4, 9, 13, 13]), [4, 8, 12, 12]);
    // With five blocks on the device, the second unit would not be asked for.
    let resumption = Resumption { device_in_doubt: true, ..resumption };
    assert_eq!(resumption.whole_units([4, 9, 9, 9]), [4, 5, 5, 5]);
}

/// A prompt of this many tokens in blocks of four.
fn prompt(tokens: u64) -> PromptLength {
    PromptLength { tokens, block_size: 4, bigrams: false }
}

fn behind_in_chunks(chunk: u32) -> Resumption {
    Resumption { units: [1, chunk, chunk, chunk], whole_prompt: true, ..Resumption::default() }
}

#[test]
fn engines_without_a_connector_report_at_most_all_but_the_last_token() {
    // Tokens of the prompt, blocks held, whether positions are pairs: tokens that are reported.
    let table = [
        (0, 0, false, 0),
        (1, 1, false, 0),
        (4, 1, false, 0),
        (5, 1, false, 4),
        (16, 4, false, 12),
        (17, 4, false, 16),
        (17, 2, false, 8),
        // SGLang with EAGLE: 16 tokens are 15 pairs, of which 14 may be reused.
        (17, 4, true, 12),
        (18, 4, true, 16),
    ];
    for (tokens, held, bigrams, cached) in table {
        let prompt = PromptLength { bigrams, ..prompt(tokens) };
        let held = HeldBlocks { resumable: held, device: held };
        let nobody = |_| panic!("no connector is asked");
        assert_eq!(
            Resumption::default().cached_tokens(prompt, held, nobody),
            cached,
            "{tokens} {held:?} {bigrams}"
        );
    }
}

#[test]
fn a_connector_counts_the_last_token_too_where_it_holds_the_last_block() {
    // Blocks per chunk, tokens of the prompt, blocks on the device, which blocks the connector holds: tokens
    // that are reported.
    let table: [(u32, u64, u32, &[u32], u64); 14] = [
        (1, 16, 4, &[0, 1, 2, 3], 16),
        (1, 16, 4, &[], 12),
        (1, 16, 4, &[0, 1, 2], 12),
        (1, 16, 4, &[3], 16),
        (1, 16, 0, &[0, 1, 2, 3], 16),
        (1, 15, 3, &[0, 1, 2, 3], 12),
        (1, 17, 3, &[3], 16),
        (1, 17, 4, &[3], 16),
        // Blocks 2 and 4 are the connector's, and block 3 is not: it does not go on from there.
        (1, 24, 2, &[2, 4, 5], 12),
        // Of chunks of two, one is not worth less than a chunk.
        (2, 16, 4, &[0, 1, 2, 3], 12),
        (2, 16, 3, &[2, 3], 12),
        (2, 16, 2, &[2, 3], 16),
        (2, 24, 3, &[2, 3, 4, 5], 24),
        (u32::MAX, 16, 2, &[2, 3], 8),
    ];
    for (chunk, tokens, device, kept, cached) in table {
        let needs = behind_in_chunks(chunk);
        let held = HeldBlocks { resumable: device, device };
        let run = |from: u32| (from..u32::MAX).take_while(|at| kept.contains(at)).count() as u32;
        assert_eq!(
            needs.cached_tokens(prompt(tokens), held, run),
            cached,
            "{chunk} {tokens} {device} {kept:?}"
        );
    }
    let doubtful = Resumption { device_in_doubt: true, ..behind_in_chunks(2) };
    let held = HeldBlocks { resumable: 2, device: 2 };
    assert_eq!(doubtful.cached_tokens(prompt(16), held, |_| 2), 12);
}

#[test]
fn windows_states_and_eagle_leave_the_last_token_out_behind_a_connector_too() {
    let held = HeldBlocks { resumable: 3, device: 4 };
    for needs in [
        Resumption { sides: vec![sliding(2)], ..behind_in_chunks(1) },
        Resumption { drops_last: true, ..behind_in_chunks(1) },
    ] {
        assert_eq!(needs.cached_tokens(prompt(16), held, |_| 4), 12);
    }
}

#[test]
fn one_pass_finds_what_the_plain_way_finds() {
    let side = |need| Side { group: Some(1), kind: SpecKind::Sliding, need };
    let needs = [
        Need::Prefix { stride: 1 },
        Need::Prefix { stride: 2 },
        Need::Run { blocks: 2, stride: 1, tail: false },
        Need::Run { blocks: 1, stride: 2, tail: true },
        Need::Run { blocks: 0, stride: 1, tail: true },
    ];
    let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
    for turn in 0..4000_usize {
        bits = bits.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(turn as u64 | 1);
        let sides = vec![side(needs[turn % 5]), side(needs[turn / 5 % 5])];
        let resumption = Resumption { sides, drops_last: turn % 3 == 0, ..Resumption::default() };
        // Most are held, so that runs are long.
        let has = |at: u32, channel: usize| (bits >> ((at * 3 + channel as u32 * 7) % 61)) & 7 != 0;
        for depth in 0..12 {
            assert_eq!(
                resumption.resumable_at_once(depth, has),
                resumption.resumable(depth, has),
                "{resumption:?} {bits:x} {depth}"
            );
        }
    }
}
