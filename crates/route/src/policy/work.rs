//! `work`: seconds.
//!
//! ```text
//! own   = u*a + t*u*(L - u/2)          u = L - held
//! queue = sum of own                   over the prompts in front, less what was done since the last first token
//! cost  = queue + alpha*own*(1 + g*n) + d*n + e*K + 0.15*k/(1-k)
//! ```

use super::{Context, Terms, View};
use crate::rate::assumed;

/// Seconds at which a KV cache that is half full counts.
const MEMORY: f64 = 0.15;

pub(crate) fn terms(context: &Context, view: &View) -> Terms {
    let uncached = (context.prompt as f64 - view.held).max(0.0);
    let weights = &context.weights;
    let own = assumed(context.prompt, uncached as u64, weights.a, weights.t) * view.factor;
    let prefill = weights.alpha * own;
    Terms {
        queue: view.queue * view.factor,
        prefill,
        imposed: prefill * weights.g * view.requests,
        decode: weights.d * view.requests + weights.e * view.kv_tokens,
        memory: MEMORY * view.kv_usage / (1.0 - view.kv_usage),
    }
}

/// The same for somebody who does not know what is cached.
pub(crate) fn blind(context: &Context, view: &View) -> f64 {
    let weights = &context.weights;
    let own = assumed(context.prompt, context.prompt, weights.a, weights.t) * view.factor;
    view.terms.queue + own + view.terms.decode + view.terms.memory
}
