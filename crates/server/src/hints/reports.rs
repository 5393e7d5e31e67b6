//! What replicas report: each part is taken or counted by itself.

use std::sync::Arc;

use kvplane_core::{ErrorCode, PublicError};
use kvplane_hints::{Book, CacheTier, Entry, PrefixHash, RESERVED_TENANT, Refused, Reported, Stats, Whose};
use kvplane_metrics::hint_counters::{Counters, Dropped, Refusal};
use kvplane_proto::inferencecache as proto;

/// Entries of one message, blocks of chains counted singly. More do not fit into a message of peers' sizes,
/// unless hashes are of a few bytes.
const MAX_ENTRIES: usize = 1 << 18;
/// Entries that are written before others get a turn on the thread: some milliseconds.
const AT_ONCE: usize = 16 << 10;
/// The widest hash that there is: SHA-512.
const MAX_HASH_BYTES: usize = 64;

/// Takes one report.
pub(crate) async fn take_update(
    book: &Book,
    counters: &Counters,
    update: proto::CacheStateUpdate,
    now_us: i64,
) -> Result<(), PublicError> {
    let whose = Whose { tenant: &update.tenant_id, model: &update.model_id, replica: &update.replica_id };
    if !is_somebody(whose, counters) {
        return Ok(());
    }
    let count = update.prefixes.iter().map(|prefix| prefix.block_hashes.len().max(1)).sum::<usize>();
    if count > MAX_ENTRIES {
        counters.refused.count(Refusal::TooManyEntries);
        let message = format!("the report has {count} entries, more than {MAX_ENTRIES}");
        return Err(
            PublicError::new(ErrorCode::LimitReached, message).with_next("send it as several messages")
        );
    }
    let at_us = moment(update.timestamp_us, now_us);
    if update.hash_scheme.is_empty() {
        counters.dropped.add(Dropped::EmptyScheme, update.prefixes.len());
    } else {
        let entries = entries(&update, counters);
        if !entries.is_empty() {
            counters.lookups.know(whose.model);
        }
        for (at, some) in entries.chunks(AT_ONCE).enumerate() {
            if at > 0 {
                tokio::task::yield_now().await;
            }
            let reported = book.report(whose, &update.hash_scheme, at_us, some);
            let Reported { taken, unnamed } = reported.map_err(|refused| too_much(refused, counters))?;
            counters.dropped.add(Dropped::Unnamed, unnamed);
            counters.dropped.add(Dropped::Heard, some.len() - taken - unnamed);
        }
    }
    let Some(stats) = &update.stats else { return Ok(()) };
    let wrong = [stats.hit_rate, stats.pressure].iter().filter(|rate| !rate.is_finite()).count();
    counters.dropped.add(Dropped::NotANumber, wrong);
    let stats = Stats {
        cache_memory_bytes: stats.cache_memory_bytes,
        hit_rate: stats.hit_rate,
        pressure: stats.pressure,
        t2_hit_tokens: stats.t2_hit_tokens,
        t2_query_tokens: stats.t2_query_tokens,
    };
    let taken = book.set_stats(whose, stats, at_us).map_err(|refused| too_much(refused, counters))?;
    counters.dropped.add(Dropped::Heard, usize::from(!taken));
    Ok(())
}

/// Takes one event.
pub(super) fn take_event(book: &Book, counters: &Counters, event: &proto::CacheEvent, now_us: i64) {
    use proto::cache_event::Type;

    let whose = Whose { tenant: &event.tenant_id, model: &event.model_id, replica: &event.replica_id };
    if !is_somebody(whose, counters) {
        return;
    }
    match Type::try_from(event.r#type) {
        Ok(Type::PrefixEvicted) if event.prefix_hash.is_empty() => counters.dropped.count(Dropped::EmptyHash),
        Ok(Type::PrefixEvicted) => {
            book.evict(whose, &PrefixHash::from_bytes(&event.prefix_hash), &event.adapter_id);
        }
        Ok(Type::AllCleared) => {
            book.clear(whose);
        }
        Ok(Type::ReplicaUpdated) => {
            let taken = book.alive(whose, moment(event.timestamp_us, now_us));
            counters.dropped.add(Dropped::Heard, usize::from(!taken));
        }
        Ok(Type::PrefixAdded) => counters.dropped.count(Dropped::PrefixAdded),
        Ok(Type::Unspecified) | Err(_) => counters.dropped.count(Dropped::UnknownEvent),
    }
}

/// Whether anything may be said of it.
fn is_somebody(whose: Whose<'_>, counters: &Counters) -> bool {
    let reason = if whose.tenant == RESERVED_TENANT {
        Dropped::ReservedTenant
    } else if whose.replica.is_empty() {
        Dropped::NoReplica
    } else {
        return true;
    };
    counters.dropped.count(reason);
    false
}

/// When something was: 0 is now, and nothing is of tomorrow, or it would outlive its time.
fn moment(reported_us: i64, now_us: i64) -> i64 {
    if reported_us == 0 { now_us } else { reported_us.min(now_us) }
}

fn too_much(refused: Refused, counters: &Counters) -> PublicError {
    counters.refused.count(Refusal::Names);
    let next = match refused {
        Refused::TooManyNames { .. } => "report for fewer of them: what is forgotten makes room",
        Refused::NameTooLong { .. } => "use shorter names",
    };
    PublicError::new(ErrorCode::LimitReached, refused.to_string()).with_next(next)
}

/// The entries of a report: one for each hash.
fn entries(update: &proto::CacheStateUpdate, counters: &Counters) -> Vec<Entry> {
    let mut entries = Vec::with_capacity(update.prefixes.len());
    // One adapter after the other is the same, nearly always none.
    let mut adapter: Arc<str> = Arc::from(update.adapter_id.as_str());
    for prefix in &update.prefixes {
        let named = if prefix.adapter_id.is_empty() { &update.adapter_id } else { &prefix.adapter_id };
        if *adapter != **named {
            adapter = Arc::from(named.as_str());
        }
        let whole = entries.len();
        if let Err(reason) = expand(prefix, &adapter, &mut entries) {
            entries.truncate(whole);
            counters.dropped.count(reason);
        }
    }
    entries
}

/// The entries of one prefix: of each block of a chain, and of the whole.
fn expand(prefix: &proto::PrefixEntry, adapter: &Arc<str>, entries: &mut Vec<Entry>) -> Result<(), Dropped> {
    let proto::PrefixEntry { prefix_hash, token_count, block_hashes, block_token_counts, tier, .. } = prefix;
    if block_hashes.len() != block_token_counts.len() {
        return Err(Dropped::UnequalArrays);
    }
    let tier = CacheTier::from_wire(*tier);
    let mut push = |hash: &[u8], tokens: u32| {
        if hash.is_empty() {
            return Err(Dropped::EmptyHash);
        }
        if hash.len() > MAX_HASH_BYTES {
            return Err(Dropped::WideHash);
        }
        entries.push(Entry { hash: PrefixHash::from_bytes(hash), tokens, tier, adapter: adapter.clone() });
        Ok(())
    };
    let mut tokens = 0_u32;
    for (hash, count) in block_hashes.iter().zip(block_token_counts) {
        tokens = tokens.saturating_add(tokens_of(*count)?);
        push(hash, tokens)?;
    }
    if block_hashes.is_empty() || !prefix_hash.is_empty() {
        push(prefix_hash, tokens_of(*token_count)?)?;
    }
    Ok(())
}

fn tokens_of(count: i32) -> Result<u32, Dropped> {
    u32::try_from(count).map_err(|_| Dropped::NegativeCount)
}
