//! `work`: seconds.
//!
//! ```text
//! own   = u*a + t*u*(L - u/2)          u = L - held
//! queue = sum of own                   over the prompts in front, less what was done since the last first token
//! cost  = queue + alpha*own*(1 + s + g*n) + d*n + e*K + 0.03*k/(1-k)
//! ```
//!
//! `s`, 0 to 1, is by the hash of what nobody holds of the prompt and of the endpoint, as far as other
//! routers send too: those that do not know of each other's bookings choose the same endpoint for it, unless
//! that is busy.

use super::{Context, Terms, View};
use crate::rate::assumed;
use crate::rng::mix;

/// Seconds at which a KV cache that is half full counts.
const MEMORY: f64 = 0.03;

pub(crate) fn terms(context: &Context, view: &View) -> Terms {
    let uncached = (context.prompt as f64 - view.held).max(0.0);
    let weights = &context.weights;
    let own = assumed(context.prompt, uncached as u64, weights.a, weights.t) * view.factor;
    let apart = context.fresh.map_or(0.0, |fresh| share(mix(fresh ^ mix(view.identity))));
    let weighted = weights.alpha * own;
    Terms {
        queue: view.queue * view.factor,
        prefill: weighted * (1.0 + context.together * apart),
        imposed: weighted * weights.g * view.requests,
        decode: weights.d * view.requests + weights.e * view.kv_tokens,
        memory: MEMORY * view.kv_usage / (1.0 - view.kv_usage),
    }
}

/// From 0 to 1.
fn share(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

/// The same for somebody who does not know what is cached.
pub(crate) fn blind(context: &Context, view: &View) -> f64 {
    let weights = &context.weights;
    let own = assumed(context.prompt, context.prompt, weights.a, weights.t) * view.factor;
    view.terms.queue + own + view.terms.decode + view.terms.memory
}
