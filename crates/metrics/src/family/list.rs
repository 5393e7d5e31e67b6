//! Every family of `/metrics`. What is said of one is for Prometheus and for the reference alike: plain text,
//! no links.

use super::Family;

/// `section { kind NAME "name" [labels] "what it is"; … }`. A section is a module with a constant for each
/// family, and a table of the reference.
macro_rules! families {
    ($($(#[$doc:meta])* $section:ident { $($kind:ident $id:ident $name:literal [$($label:ident)*] $help:literal;)+ })+) => {
        $(
            $(#[$doc])*
            pub(crate) mod $section {
                use super::Family;
                $(pub(crate) const $id: Family = Family::$kind($name, &[$(stringify!($label)),*], $help);)+
            }
        )+

        /// All families, by section.
        #[cfg(test)]
        pub(super) const SECTIONS: &[(&str, &[Family])] =
            &[$((stringify!($section), &[$($section::$id),+])),+];
    };
}

families! {
    /// Value: what was asked for, and what of it the fleet holds.
    value {
        counter PROMPTS "kvplane_prompts" [protocol] "Prompts that were looked up, by protocol: http, grpc, pick, indexer, hints";
        counter TOKENS_ASKED "kvplane_prompt_tokens_asked" [protocol] "Tokens of these prompts";
        counter TOKENS_FOUND "kvplane_prompt_tokens_found" [protocol]
            "Tokens of these prompts that the engine with the longest credited match holds. Divided by tokens asked: the hit rate that routing can reach";
        gauge TOP_PREFIX_TOKENS "kvplane_top_prefix_tokens" [prefix model length]
            "Tokens found through the ten prefixes that saved the most, by keyed hash. At most ten series at a time; the set changes";
    }

    /// Where a stream stands and what it holds.
    streams {
        gauge BLOCKS "kvplane_stream_blocks" [engine rank model tier] "Blocks resident, by tier";
        gauge USED_BLOCKS "kvplane_stream_used_blocks" [engine rank model] "Device blocks in use: every copy, in all groups of the cache";
        gauge CAPACITY_BLOCKS "kvplane_stream_capacity_blocks" [engine rank model]
            "Device blocks of the engine; absent if unknown. Used blocks divided by this is the fullness of the cache";
        gauge CONTINUITY "kvplane_stream_continuity" [engine rank model continuity] "1 for the current continuity, 0 for the others";
        gauge TRUST "kvplane_stream_trust" [engine rank model trust] "1 for the current trust level, 0 for the others";
        gauge DEGRADED "kvplane_stream_degraded" [engine rank model reason] "1 for each active reason; absent for the others";
        gauge EPOCH "kvplane_stream_epoch" [engine rank model] "Start of the current epoch, unix milliseconds";
        gauge LAST_SEQUENCE "kvplane_stream_last_sequence" [engine rank model] "Engine sequence of the last batch; also 0 before the first";
        gauge KNOWN_FROM_SEQUENCE "kvplane_stream_known_from_sequence" [engine rank model]
            "Engine sequence from which the history is complete; also 0 when nothing is known";
        gauge WAITING_BLOCKS "kvplane_stream_waiting_blocks" [engine rank model] "Blocks that wait for an unknown parent";
        gauge UNJOINED_BLOCKS "kvplane_stream_unjoined_blocks" [engine rank model]
            "Blocks in colder tiers that came as hashes alone and could not be joined to a known block yet: held, and credited to no engine. A value that stays high is missing credit";
        gauge DICTIONARY_BLOCKS "kvplane_stream_dictionary_blocks" [engine rank model] "Blocks known, held or not";
        gauge STATE_BYTES "kvplane_stream_state_bytes" [engine rank model] "Bytes of the live state (estimated)";
        gauge WINDOW_BYTES "kvplane_stream_window_bytes" [engine rank model] "Bytes of the replay window (estimated)";
        gauge WINDOW_BATCHES "kvplane_stream_window_batches" [engine rank model] "Entries in the replay window, kvplane's own notes included";
        gauge SINCE_LAST_EVENT_SECONDS "kvplane_stream_since_last_event_seconds" [engine rank model]
            "Time since the last batch was applied, or since its timestamp if it came from a replay; absent before the first batch, and without a usable timestamp";
        gauge READ_BEFORE_SECONDS "kvplane_stream_read_before_seconds" [engine rank model]
            "Age of this stream's values, because it is busy with a batch; absent if they were read just now";
        gauge LAG_SECONDS "kvplane_stream_lag_seconds" [engine rank model]
            "Age of the last batch when it was applied, by the engine's clock; absent before the first batch, for a replayed one, and without usable timestamps";
        gauge AGE_SECONDS "kvplane_stream_age_seconds" [engine rank model]
            "Time since the engine was last proven to be there, by a heartbeat or an answer; beyond max_silence the stream is recovering. Absent before the first proof";
    }

    /// What happened to a stream.
    stream_counters {
        counter BATCHES "kvplane_stream_batches" [engine rank model] "Batches applied";
        counter EVENTS "kvplane_stream_events" [engine rank model] "Events in applied batches";
        counter BLOCKS_STORED "kvplane_stream_blocks_stored" [engine rank model] "Blocks announced as stored";
        counter BLOCKS_REMOVED "kvplane_stream_blocks_removed" [engine rank model] "Copies announced as removed";
        counter CLEARS "kvplane_stream_clears" [engine rank model] "Clears";
        counter GAPS "kvplane_stream_gaps" [engine rank model] "Gaps seen in the live sequence, damaged frames included";
        counter GAPS_UNFILLED "kvplane_stream_gaps_unfilled" [engine rank model] "Losses that could not be repaired";
        counter REPLAYS "kvplane_stream_replays" [engine rank model] "Replay requests, including those during a silence";
        counter REPLAYS_FAILED "kvplane_stream_replays_failed" [engine rank model] "Replay requests that failed or returned a truncated range";
        counter REPLAYED_BATCHES "kvplane_stream_replayed_batches" [engine rank model] "Batches that came from a ring";
        counter RESTARTS "kvplane_stream_restarts" [engine rank model] "Restarts proven";
        counter UNPROVEN_EPOCHS "kvplane_stream_unproven_epochs" [engine rank model] "New epochs begun because the engine could not be proven to be the same process";
        counter DISCONNECTS "kvplane_stream_disconnects" [engine rank model] "Disconnects noticed; not for streams on a bound socket";
        counter DUPLICATES "kvplane_stream_duplicates" [engine rank model] "Duplicates dropped, batches that came both live and replayed included";
        counter REFUSED "kvplane_stream_refused" [engine rank model]
            "Late batches of a range that was given up; frames under the number that ends a replay";
        counter HOLD_OVERFLOWS "kvplane_stream_hold_overflows" [engine rank model] "Times that the hold buffer overflowed while a verdict was pending";
        counter UNDECODABLE_BATCHES "kvplane_stream_undecodable_batches" [engine rank model] "Batches that could not be decoded";
        counter FOREIGN_REPLAYS "kvplane_stream_foreign_replays" [engine rank model]
            "Times that the replay address turned out to be another publisher's";
        counter SILENCES "kvplane_stream_silences" [engine rank model]
            "Times a stream left live because nothing proved that its engine was there";
        counter INTERLEAVINGS "kvplane_stream_interleavings" [engine rank model]
            "Times that two publishers used one topic";
        counter MISDIRECTED_INPUTS "kvplane_stream_misdirected_inputs" [engine rank model]
            "Inputs ignored because only another kind of source has them: a defect of kvplane";
        counter MALFORMED_FRAMES "kvplane_stream_malformed_frames" [engine rank model]
            "Malformed messages: wrong number of frames, or no sequence";
        counter UNKNOWN_EVENTS "kvplane_stream_unknown_events" [engine rank model] "Events of an unknown kind, skipped";
        counter UNKNOWN_FIELDS "kvplane_stream_unknown_fields" [engine rank model] "Unknown fields, ignored";
        counter UNKNOWN_REMOVALS "kvplane_stream_unknown_removals" [engine rank model]
            "Removals of unknown blocks. Normal after a loss or a late join";
        counter MISPLACED_REMOVALS "kvplane_stream_misplaced_removals" [engine rank model]
            "Removals that name the wrong place of a block; ignored";
        counter PROVEN_BLOCKS "kvplane_stream_proven_blocks" [engine rank model] "Blocks that a later store proved to be held";
        counter REANNOUNCED_BLOCKS "kvplane_stream_reannounced_blocks" [engine rank model]
            "Blocks that were announced again without another copy (vLLM's kv_cache_report_mode)";
        counter OVER_COUNTS "kvplane_stream_over_counts" [engine rank model] "Epochs in which more copies were announced than the engine has blocks";
        counter FLUSHES_PROVEN "kvplane_stream_flushes_proven" [engine rank model] "Flushes that the stream showed";
        counter FLUSHES_UNPROVEN "kvplane_stream_flushes_unproven" [engine rank model]
            "Flushes that the stream did not show in time; residency was dropped";
        counter UNRECORDED_BLOCKS "kvplane_stream_unrecorded_blocks" [engine rank model] "Blocks not recorded because a budget was used up";
        counter SPARSE_STORES "kvplane_stream_sparse_stores" [engine rank model] "Stores with holes (hybrid models)";
        counter PLACEHOLDER_STORES "kvplane_stream_placeholder_stores" [engine rank model] "Stores with hashes and no tokens";
        counter FOREIGN_RANK_BATCHES "kvplane_stream_foreign_rank_batches" [engine rank model]
            "Batches that name another rank than their stream";
        counter BLOCK_SIZE_CONTRADICTIONS "kvplane_stream_block_size_contradictions" [engine rank model]
            "Stores whose block size is not the configured (or first learned) one";
        counter REJECTED_EVENTS "kvplane_stream_rejected_events" [engine rank model reason]
            "Malformed events, rejected one by one; absent until there is one";
    }

    /// Where events come from.
    sources {
        gauge PUBLISHERS_EXPECTED "kvplane_publishers_expected" [engine] "Ranks that are configured, or that the engine reports";
        gauge PUBLISHERS_HEARD "kvplane_publishers_heard" [engine] "Ranks that are connected and have a verdict";
        gauge TROUBLE "kvplane_source_trouble" [engine rank trouble] "1 for the current trouble of the source; absent without trouble";
        counter TROUBLES "kvplane_source_troubles" [engine rank trouble] "Times that a kind of trouble began; absent until the first";
    }

    /// Questions about prompts.
    queries {
        counter QUERIES "kvplane_queries" [outcome] "Questions to /v1/query, Query and QueryStream, by outcome";
        histogram DURATION_SECONDS "kvplane_query_duration_seconds" []
            "Query duration";
    }

    /// Prompts that are given as text.
    prompts {
        counter TOKENIZED "kvplane_prompts_tokenized" [] "Text prompts tokenized";
        counter REFUSED "kvplane_prompts_refused" [] "Text prompts rejected";
        counter WITHOUT_TOKENS "kvplane_prompts_without_tokens" [reason] "Text prompts routed by load because their ids were late or too many texts waited, by reason";
        counter TOKENS "kvplane_prompt_tokens" [] "Token ids computed from text prompts";
        counter SECONDS_SPENT "kvplane_prompt_tokenize_seconds" [] "Time spent tokenizing";
        counter CONTRADICTIONS "kvplane_prompt_contradictions" [] "Engines found to compute different ids, once per finding";
        gauge PARITY "kvplane_prompt_parity" [model engine state] "Dimensions of prompts that are proven, assumed or contradicted for an engine";
        counter COMPARED "kvplane_prompt_comparisons" [model engine outcome] "Text prompts compared with an engine, by outcome: equal or different";
    }

    /// The process itself.
    process {
        gauge BUILD_INFO "kvplane_build_info" [version commit] "Always 1, labelled with version and commit";
        gauge OPEN_FILES "kvplane_open_files" [] "Open file descriptors; absent if the system does not report them";
        gauge OPEN_FILES_LIMIT "kvplane_open_files_limit" [] "File descriptor limit; absent if the system does not report it";
        gauge SOCKET_ROUND_SECONDS "kvplane_socket_round_seconds" []
            "Longest current round of a socket thread; more than a few seconds means that it is stalled";
    }

    /// Who looks, and who was turned away.
    callers {
        gauge WATCHERS "kvplane_watchers" [] "Readers of `/v1/watch`: dashboards that are open";
        counter AUTH_REFUSED "kvplane_auth_refused" [listener why] "Requests rejected by authentication or authorisation, by reason";
        counter TLS_HANDSHAKES_FAILED "kvplane_tls_handshakes_failed" [listener why]
            "Failed TLS handshakes, by reason. Absent without TLS";
        gauge CONNECTIONS "kvplane_connections" [listener] "Open connections of clients";
        counter CONNECTIONS_CLOSED "kvplane_connections_closed" [listener reason]
            "Connections refused or closed at a bound, by reason";
        counter SOCKETS_REFUSED "kvplane_event_sockets_refused" [socket reason]
            "Connections at ZeroMQ sockets (events that are heard, republished ones) refused, or closed for a fault of the peer's, by reason. Absent until there is one";
        gauge REQUEST_BYTES "kvplane_request_bytes" [] "Bytes of requests being received or decoded";
        counter REQUESTS_REFUSED "kvplane_requests_refused" [reason] "Requests refused at a bound, by reason";
    }

    /// Operations on the fleet.
    operations {
        counter ENDED "kvplane_operations" [verb outcome] "Finished operations, by outcome. Absent until there is one";
        counter RANKS "kvplane_operation_ranks" [verb verdict] "Ranks of operations, by verdict";
        gauge IN_FLIGHT "kvplane_operations_in_flight" [] "Operations in progress, including those whose streams are still watched";
    }

    /// Decisions, and what came of them.
    routes {
        counter DECISIONS "kvplane_route_decisions" [why] "Decisions of /v1/pick and Pick, by reason for the first choice";
        histogram DECISION_SECONDS "kvplane_route_decision_seconds" [] "Decision duration, hashing and lookup included";
        counter PROMPT_TOKENS "kvplane_route_prompt_tokens" [] "Prompt tokens of settled receipts; the following token counts are of the same receipts";
        counter CEILING_TOKENS "kvplane_route_seen_before_tokens" [] "Prompt tokens in prefixes seen before: what an unlimited cache would hold";
        counter FLEET_TOKENS "kvplane_route_fleet_cached_tokens" [] "Cached tokens of the longest match on any engine";
        counter ELIGIBLE_TOKENS "kvplane_route_eligible_cached_tokens" [] "Cached tokens of the longest match among eligible engines";
        counter PREDICTED_TOKENS "kvplane_route_predicted_tokens" [] "Cached tokens predicted for the picked engine";
        counter DELIVERED_TOKENS "kvplane_route_delivered_tokens" [] "Cached tokens reported by the engine that served";
        counter GAINED_TOKENS "kvplane_route_gained_tokens" [] "Cached tokens delivered beyond the prediction: stored after the decision";
        counter LOST_TOKENS "kvplane_route_lost_tokens" [cause] "Cached before and not delivered, by cause";
        counter UNLEDGERED "kvplane_route_unledgered" [reason] "Bookings that ended without a report of what was delivered";
        counter SETTLED "kvplane_route_receipts_settled" [] "Receipts with a report of delivered tokens";
        counter EQUAL "kvplane_route_receipts_equal" [] "Settled receipts with as many tokens delivered as predicted";
        counter DRIFTS "kvplane_route_drifts" [] "Exact predictions that differ from what was delivered, without any event of the engine that says why: a defect of kvplane or of the engine";
        gauge LOADS "kvplane_route_loads" [source] "Endpoints by source of their load: bookings alone, a fresh report of the engine, or bookings because the last report is stale";
        counter LOAD_POLLS "kvplane_route_load_polls" [outcome] "Polls of engines' /metrics for their load, by outcome";
        gauge BOOKINGS "kvplane_route_bookings" [] "Requests in flight";
        gauge TOLD_BOOKINGS "kvplane_route_bookings_of_others" [] "Requests in flight of other planes, as reported over links";
        gauge SHARING_PLANES "kvplane_route_sharing_planes" [how] "Planes that share bookings: followed by this one, or following it";
        counter SHARED_UPDATES "kvplane_route_shared_updates" [direction] "Updates of bookings exchanged with other planes, by direction";
        counter SHARED_REFUSED "kvplane_route_shared_updates_dropped" [reason] "Updates dropped: too many bookings of others, an engine that is not known here, or a plane that reads too slowly and begins anew";
        counter EXPIRED "kvplane_route_bookings_expired" [] "Bookings that expired after 300 s";
        counter REFUSED "kvplane_route_bookings_refused" [] "Bookings rejected because the table was full; the decision was made without one";
        counter UNPREDICTED "kvplane_route_flights_refused" [] "Prompts in flight not recorded because the table was full; they did not count as held";
        gauge RECEIPT_BYTES "kvplane_route_receipt_bytes" [] "Bytes of kept receipts (estimated)";
    }

    /// The endpoint picker. Absent without one.
    picker {
        counter REQUESTS "kvplane_picker_requests" [outcome] "Requests from gateways, by outcome";
        counter WITHOUT_TOKENS "kvplane_picker_without_tokens" [reason] "Requests picked by load only, by reason why their tokens were unknown";
        counter ENDED "kvplane_picker_ended" [how] "Finished requests, by how they ended";
        counter WRONG_ENDPOINTS "kvplane_picker_wrong_endpoints" [] "Responses from an endpoint other than the picked one";
        counter REWRITTEN "kvplane_picker_rewritten" [] "Requests sent on with another model name";
        gauge STREAMS "kvplane_picker_streams" [] "Open external processing streams: requests in progress";
        gauge HELD_BYTES "kvplane_picker_held_bytes" [] "Bytes of request bodies held";
        gauge ENDPOINTS "kvplane_picker_endpoints" [] "Endpoints of the pool";
    }

    /// The gateway. Absent without one.
    gateway {
        counter REQUESTS "kvplane_gateway_requests" [api status] "Requests of clients, by API and class of the response status";
        counter DECISIONS "kvplane_gateway_decisions" [by] "Forwarded requests, by how their engine was chosen: by the prompt's tokens, by load, or round robin";
        counter WITHOUT_TOKENS "kvplane_gateway_without_tokens" [reason] "Requests routed without the tokens of their prompt, by reason";
        counter ENDED "kvplane_gateway_ended" [how] "Answers of engines, by how they ended";
        counter RETRIES "kvplane_gateway_retries" [reason] "Retried requests, by reason";
        counter UNRETRIED "kvplane_gateway_retries_refused" [] "Retries not made because the retry budget was used up";
        counter LIMITED "kvplane_gateway_limited" [limit] "Requests refused because their caller had reached a limit";
        counter PREFILLS "kvplane_gateway_prefills" [where] "Requests of engines that only decode, by where their prompt was computed: apart, in place, or failed to be computed apart";
        counter TRACES "kvplane_gateway_traces" [how] "Traced requests: sent to the collector, not taken by it, or dropped because too many waited";
        counter REFUSED "kvplane_gateway_refused" [reason] "Requests refused at a bound of the gateway, by reason";
        counter FORWARDED_IDS "kvplane_gateway_forwarded_ids" [] "Prompts forwarded as token ids";
        counter WITHDRAWN_IDS "kvplane_gateway_withdrawn_ids" [] "Endpoints that reject or ignore token ids, and get text since";
        gauge IN_FLIGHT "kvplane_gateway_in_flight" [] "Requests in progress";
        gauge HELD_BYTES "kvplane_gateway_held_bytes" [] "Bytes of request bodies held";
        gauge ENDPOINTS "kvplane_gateway_endpoints" [standing] "Endpoints by whether they take requests: up, on trial, breaker open, or down";
        histogram FIRST_TOKEN "kvplane_gateway_time_to_first_token_seconds" [] "Time from the request head to the first byte of a streamed answer";
        histogram PER_TOKEN "kvplane_gateway_time_per_output_token_seconds" [] "Time per output token after the first, for streamed answers with usage";
        histogram QUEUE "kvplane_gateway_queue_seconds" [] "Time from the request head until it is sent to an engine: body, tokens and decision";
    }

    /// Fronts of engines.
    fronts {
        counter FORWARDED_CALLS "kvplane_front_forwarded_calls" [engine] "Calls passed to the engine";
        counter OWN_CALLS "kvplane_front_own_calls" [engine] "Calls that kvplane answered itself";
        counter UNAVAILABLE_CALLS "kvplane_front_unavailable_calls" [engine] "Calls that failed because the engine was unreachable";
        counter REFUSED_CALLS "kvplane_front_refused_calls" [engine reason] "Calls rejected because too many were in progress, by reason";
        counter CONNECTS "kvplane_front_connects" [engine] "Connections made to the engine";
        counter CONNECT_FAILURES "kvplane_front_connect_failures" [engine] "Failed connection attempts to the engine";
        counter REFUSED_CONNECTIONS "kvplane_front_refused_connections" [engine] "Connections rejected because there were too many";
        counter EVIDENCE "kvplane_front_evidence" [engine] "Requests whose reported cached tokens proved blocks of a stream with unknown history";
        counter EVIDENCE_BLOCKS "kvplane_front_evidence_blocks" [engine] "Blocks proven by such requests, counted each time";
        counter EVIDENCE_REJECTED "kvplane_front_evidence_rejected" [engine reason]
            "Requests that proved nothing, by reason; counted only while a stream of the engine would accept a proof";
        gauge IN_FLIGHT_CALLS "kvplane_front_in_flight_calls" [engine] "Calls in progress";
    }

    /// Other planes that are followed.
    links {
        gauge UP "kvplane_link_up" [engine] "1 while the other plane is followed";
        gauge REFUSED_ENGINES "kvplane_link_refused_engines" [engine]
            "Engines of the other plane that came through this one: following them would be a loop";
        counter CONNECTS "kvplane_link_connects" [engine] "Subscriptions that came up";
        counter LOOPS "kvplane_link_loops" [engine] "Times that a loop was refused";
        counter VOIDS "kvplane_link_voids" [engine reason] "Streams invalidated because a message did not match their state";
    }

    /// Sources of engines (`[[discover]]`).
    discovery {
        gauge CURRENT "kvplane_discovery_current" [source]
            "1 while the source is watched and current; 0 while known engines stay as they were";
        gauge PODS "kvplane_discovery_pods" [source] "Pods that match";
        gauge ENGINES "kvplane_discovery_engines" [source] "Engines that they are";
        counter LISTS "kvplane_discovery_lists" [source] "Complete lists read";
        counter CHANGES "kvplane_discovery_changes" [source] "Changes received";
        counter REFUSED_PODS "kvplane_discovery_refused_pods" [source] "Pods beyond the 16,384 that a source may have";
        counter FAILURES "kvplane_discovery_failures" [source reason]
            "Requests that failed, by reason: forbidden (401, 403), expired (410, listed again), failed; and conflict: engines that could not be added";
    }

    /// The durable journal, where `journal.dir` is configured.
    journal {
        gauge ON "kvplane_journal_on" [] "1 while streams are kept in the durable journal. 0: it is off until the next start, and then streams begin anew";
        gauge OFF "kvplane_journal_off" [reason]
            "1 for the reason why it is off: full, limit (journal.max_disk), failed, slow (a write that hangs, or too much that waits), damaged";
        gauge BYTES "kvplane_journal_bytes" [] "Bytes of its files";
        gauge SEGMENTS "kvplane_journal_segments" [] "Its files";
        gauge QUEUED_BYTES "kvplane_journal_queued_bytes" [] "Bytes that wait to be written";
        gauge RESTORED_STREAMS "kvplane_journal_restored_streams" [] "Streams that the start found whole";
        gauge VOID_STREAMS "kvplane_journal_void_streams" [] "Streams of which the start found a part missing: they began anew";
        gauge WAITING_STREAMS "kvplane_journal_waiting_streams" [] "Streams that were found and whose engine is not there yet";
        counter STEPS "kvplane_journal_steps" [] "Steps of streams written";
        counter WRITTEN_BYTES "kvplane_journal_written_bytes" [] "Bytes written";
        counter COMPACTIONS "kvplane_journal_compactions" [] "Times that old files were replaced by what they lead to";
    }

    /// Other indexers whose dumps are taken where a stream's past is not known.
    peers {
        gauge PEERS "kvplane_peers" [] "Peers that are configured or were registered";
        counter DUMPS "kvplane_peer_dumps" [] "Peer dumps read";
        counter FAILURES "kvplane_peer_dump_failures" [] "Peer dumps that could not be fetched or read";
        counter UNFIT "kvplane_peer_dumps_unfit" []
            "Peer dumps rejected by a stream: older than its own events, ahead of them for too long, or of another epoch of the engine";
        counter RECOVERIES "kvplane_peer_recoveries" [] "Streams recovered from a dump";
        counter BLOCKS "kvplane_peer_blocks" [] "Blocks recovered from dumps";
    }

    /// What is reported to servers elsewhere.
    reports {
        gauge CONNECTED "kvplane_report_connected" [server engine tenant model replica] "1 while there is a connection to the server";
        gauge FAILING "kvplane_report_failing" [server engine tenant model replica] "1 while the last call was rejected";
        gauge BLOCKS "kvplane_report_blocks" [server engine tenant model replica] "Blocks reported to the server";
        gauge PENDING_ADDS "kvplane_report_pending_adds" [server engine tenant model replica] "Blocks waiting to be reported";
        gauge PENDING_EVICTIONS "kvplane_report_pending_evictions" [server engine tenant model replica] "Evictions waiting to be reported";
        gauge PENDING_CLEAR "kvplane_report_pending_clear" [server engine tenant model replica]
            "1 while everything has to be cleared first";
        gauge STATS_STALE "kvplane_report_stats_stale" [server engine tenant model replica] "1 while the engine's load cannot be read";
        gauge SINCE_LAST_TAKEN_SECONDS "kvplane_report_since_last_taken_seconds" [server engine tenant model replica]
            "Time since the server last accepted a report";
        counter TOLD_BLOCKS "kvplane_report_told_blocks" [server engine tenant model replica]
            "Blocks accepted by the server, including repeats";
        counter EVICTED_BLOCKS "kvplane_report_evicted_blocks" [server engine tenant model replica] "Evictions accepted by the server";
        counter REFRESHED_BLOCKS "kvplane_report_refreshed_blocks" [server engine tenant model replica]
            "Blocks reported again so that the server does not expire them";
        counter REFUSED_BLOCKS "kvplane_report_refused_blocks" [server engine tenant model replica]
            "Blocks rejected by the server; retried at the next refresh";
        counter CLEARS "kvplane_report_clears" [server engine tenant model replica] "Times that everything was cleared";
        counter RESYNCS "kvplane_report_resyncs" [server engine tenant model replica]
            "Times that everything was reported again after a reconnect";
        counter COLLAPSES "kvplane_report_collapses" [server engine tenant model replica]
            "Times that everything was cleared and reported again because too many evictions were waiting";
        counter RETRIES "kvplane_report_retries" [server engine tenant model replica]
            "Calls that failed and are retried";
        counter CALLS "kvplane_report_calls" [server engine tenant model replica call outcome]
            "Calls, by kind and outcome";
        counter WITHHELD_BLOCKS "kvplane_report_withheld_blocks" [server reason] "Blocks not reported, by reason";
    }

    /// What is held, by content.
    indexes {
        gauge STREAMS "kvplane_index_streams" [model block_size bigrams] "Streams in the index";
        gauge BLOCKS "kvplane_index_blocks" [model block_size bigrams] "Blocks, once per stream that holds them";
        gauge DISTINCT_BLOCKS "kvplane_index_distinct_blocks" [model block_size bigrams]
            "Different blocks in the index. Blocks divided by this is the number of engines that hold a block, on average";
        gauge INDEX_BYTES "kvplane_index_bytes" [model block_size bigrams] "Memory of the index in bytes";
        gauge WAITING_BLOCKS "kvplane_index_waiting_blocks" [model block_size bigrams]
            "Blocks without a held parent: not credited until it arrives";
        gauge UNRECLAIMED_BLOCKS "kvplane_index_unreclaimed_blocks" [model block_size bigrams]
            "Blocks of past epochs waiting to be freed; in no answer";
        counter REFUSED "kvplane_index_refused" [model reason] "Stores that were not recorded completely, by reason";
    }

    /// Hints for gateways.
    hints {
        gauge ENTRIES "kvplane_hints_entries" [] "Prefixes, once per replica that holds them";
        gauge BOOK_BYTES "kvplane_hints_bytes" [] "Bytes of the hint tables (estimated)";
        gauge REPLICAS "kvplane_hints_replicas" [from] "Known replicas: reported ones, and engines followed here";
        gauge LISTENERS "kvplane_hints_listeners" [] "Subscribers of StreamCacheEvents";
        counter DROPPED "kvplane_hints_dropped" [reason] "Parts of reports and events that changed nothing, by reason";
        counter UNUSABLE_LOOKUPS "kvplane_hints_unusable_lookups" [reason]
            "Unusable lookups, answered without a hint; the response names the reason in the metadata kvplane-reason";
        counter REFUSED "kvplane_hints_refused" [reason] "Calls rejected and listeners ended, by reason";
        counter WITHHELD_BLOCKS "kvplane_hints_withheld_blocks" [reason]
            "Blocks of engines followed here that hints leave out because the protocol cannot express them; absent before the first call";
    }

    /// Under the names of inference-cache's server.
    inference_cache {
        gauge SERVER_UP "inferencecache_server_up" [] "1 while lookups are answered";
        gauge GRPC_TLS_ENABLED "inferencecache_server_grpc_tls_enabled" [] "1 with listen.tls, else 0";
        gauge INDEX_ENTRIES "inferencecache_index_entries" [model] "Distinct prefixes";
        counter LOOKUP_ROUTE_CALLS "inferencecache_lookup_route_calls" [model reason_code hint_used]
            "Lookups, by answer; absent until there is one";
        histogram LOOKUP_ROUTE_LATENCY_SECONDS "inferencecache_lookup_route_latency_seconds" [model]
            "Lookup duration, from reading the request to writing the response";
        counter TENANT_EVICTIONS "inferencecache_tenant_evictions" [tenant_id reason] "Entries dropped to keep a tenant to its quota";
        counter INDEX_EVICTIONS "inferencecache_index_evictions" [algorithm reason]
            "Entries dropped because there were too many in all, or because they were not reported again";
        counter SNAPSHOT_AUTH "inferencecache_snapshot_auth" [result] "Authorised calls of /snapshot";
        counter POLICY_AUTH "inferencecache_policy_auth" [result] "Authorised calls of /policy";
        counter PROBE_AUTH "inferencecache_probe_auth" [result] "Authorised calls of /probe";
    }

    /// The routes of an indexer, under the names of Dynamo's.
    indexer_routes {
        counter REQUESTS "dynamo_kvindexer_requests" [endpoint method] "Requests on the routes of an indexer";
        counter ERRORS "dynamo_kvindexer_errors" [endpoint status_class] "Responses of 400 and above, by class";
        histogram DURATION_SECONDS "dynamo_kvindexer_request_duration_seconds" [endpoint]
            "Request duration, from request head to response head";
        gauge MODELS "dynamo_kvindexer_models" [] "Models, counted once per routing group";
        gauge WORKERS "dynamo_kvindexer_workers" [] "Engines";
        gauge LISTENERS "dynamo_kvindexer_listeners" [status] "Streams by status, as in /workers";
    }
}
