//! Contracts: code generated from `proto/`, and nothing else.
//!
//! A server's streamed responses have the type [`Encoded`]: bytes that somebody encoded once and that every
//! subscriber is sent as they are. Clients see the real messages.

mod encoded;

pub use encoded::Encoded;

/// All contracts as a descriptor set, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// kvplane's own protocol.
pub mod kvplane {
    /// Messages and client.
    #[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated")]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/client/kvplane.v1.rs"));

        /// The server's side.
        pub mod server {
            include!(concat!(env!("OUT_DIR"), "/server/kvplane.v1.rs"));
        }
    }
}
