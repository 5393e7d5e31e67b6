//! What other routers do, in the same shape: to compare with, or to keep to.
//!
//! They see the exact state and fresh bookings, which is more than each of them has by itself, and count
//! nothing that is in flight as held, as their defaults do.

use super::{Context, View};
use crate::rng::mix;

/// Puts a candidate behind all that are not far.
const FAR: f64 = 1e12;

/// In the order of the candidates, one further each time.
pub(crate) fn round_robin(context: &Context, views: &[View], costs: &mut Vec<f64>) {
    let count = views.len().max(1) as u64;
    let first = context.turn % count;
    costs.extend((0..count).take(views.len()).map(|at| ((at + count - first) % count) as f64));
}

/// By rendezvous hashing: when one leaves, only what was there moves. Without a key, the least work.
pub(crate) fn stay(context: &Context, key: Option<u64>, views: &[View], costs: &mut Vec<f64>) {
    let Some(key) = key else {
        costs.extend(views.iter().map(|view| super::work::blind(context, view)));
        return;
    };
    costs.extend(views.iter().map(|view| mix(key ^ mix(view.identity)) as f64));
}

/// SMG 1.13's cache-aware policy with events: holders of the most, without those over the gate, by expected wait.
pub(crate) fn affinity(context: &Context, views: &[View], costs: &mut Vec<f64>) {
    let most = views.iter().map(|view| view.credit).fold(0.0, f64::max);
    let mean = views.iter().map(|view| view.requests).sum::<f64>() / views.len().max(1) as f64;
    let slack = (2.0 * mean.sqrt()).ceil().clamp(4.0, 64.0);
    let gated = |view: &View| view.requests > 1.5 * mean && view.requests > mean + slack;
    let holds = |view: &View| most > 0.0 && view.credit >= most && !gated(view);
    let none = !views.iter().any(holds);
    costs.extend(views.iter().map(|view| {
        let wait = expected_wait(context, view);
        if none || holds(view) { wait } else { wait + FAR }
    }));
}

/// SMG's estimate: queued uncached tokens, 1,024 per running request, and a KV cache that is nearly full.
fn expected_wait(context: &Context, view: &View) -> f64 {
    let running = (view.requests - view.waiting).max(0.0);
    let tokens = view.pending + running * 1_024.0;
    tokens * context.weights.a * view.factor + 0.15 * view.kv_usage / (1.0 - view.kv_usage)
}

/// Dynamo 1.6: prefill blocks that would be active, less what is cached, plus decode blocks.
pub(crate) fn dynamo(context: &Context, views: &[View], costs: &mut Vec<f64>) {
    const BLOCK: f64 = 16.0;
    costs.extend(views.iter().map(|view| {
        let prefill = (view.pending + context.prompt as f64 - view.credit).max(0.0);
        (prefill + view.kv_tokens) / BLOCK
    }));
}

/// `LMetric`: prefill tokens there with this prompt, times requests there with this one.
pub(crate) fn lmetric(context: &Context, views: &[View], costs: &mut Vec<f64>) {
    costs.extend(views.iter().map(|view| {
        let prefill = view.pending + (context.prompt as f64 - view.credit).max(0.0);
        prefill * (view.requests + 1.0)
    }));
}

/// llm-d's filter: who holds four fifths, unless the best of them is 18 s behind the best of the others; then
/// by tokens.
pub(crate) fn llm_d_filter(context: &Context, views: &[View], costs: &mut Vec<f64>) {
    const SHARE: f64 = 0.8;
    const TOKENS_PER_SECOND: f64 = 15_928.0;
    const PENALTY: f64 = 18.0;
    let holds = |view: &View| view.credit >= SHARE * context.prompt as f64;
    let least = |of: &dyn Fn(&View) -> bool| {
        let those = views.iter().filter(|view| of(view)).map(|view| view.pending / TOKENS_PER_SECOND);
        those.fold(f64::INFINITY, f64::min)
    };
    let (holding, other) = (least(&holds), least(&|view| !holds(view)));
    let keep = holding.is_finite() && holding - other <= PENALTY;
    costs.extend(views.iter().map(|view| {
        let load = view.pending;
        if !keep || holds(view) { load } else { load + FAR }
    }));
}
