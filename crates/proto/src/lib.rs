//! Contracts: code generated from `proto/`, and what every client and server of them shares.
//!
//! A server's streamed responses have the type [`Encoded`]: bytes that somebody encoded once and that every
//! subscriber is sent as they are. Clients see the real messages.

mod bearer;
mod encoded;
mod ext_proc;
mod worth;

pub use bearer::{Bearer, UnfitToken};
pub use encoded::Encoded;
pub use ext_proc::{Passed, Received, Reply, Side};
pub use worth::{continuity, trust_level};

/// All contracts as a descriptor set, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// A package: its messages and clients, and its servers in a module of their own.
macro_rules! package {
    ($(#[$doc:meta])* $name:ident, $file:literal) => {
        $(#[$doc])*
        #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/client/", $file));

            /// The server's side.
            pub mod server {
                include!(concat!(env!("OUT_DIR"), "/server/", $file));
            }
        }
    };
}

/// kvplane's own protocol.
pub mod kvplane {
    package!(
        /// Messages and client.
        v1,
        "kvplane.v1.rs"
    );
}

package!(
    /// inference-cache: hints for gateways, fed by reports.
    inferencecache,
    "inferencecache.v1alpha1.rs"
);

package!(
    /// Envoy's external processing, as far as an endpoint picker needs it.
    envoy,
    "envoy.service.ext_proc.v3.rs"
);

/// SMG's messages for KV events and for operations.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
pub mod smg {
    include!(concat!(env!("OUT_DIR"), "/client/smg.grpc.common.rs"));
}

/// The engines' own services, as far as kvplane answers or asks them.
pub mod engines {
    package!(
        /// vLLM.
        vllm,
        "vllm.grpc.engine.rs"
    );
    package!(
        /// SGLang.
        sglang,
        "sglang.grpc.scheduler.rs"
    );
    package!(
        /// TokenSpeed.
        tokenspeed,
        "tokenspeed.grpc.scheduler.rs"
    );
    package!(
        /// TensorRT-LLM.
        trtllm,
        "trtllm.rs"
    );
    package!(
        /// MLX.
        mlx,
        "mlx.grpc.engine.rs"
    );
}
