//! Questions to engines' own servers, each with a bound of time and size.
//!
//! [`HttpClient`] asks over HTTP/1, [`grpc`] over gRPC with messages as bytes. Neither knows what is asked,
//! or what an answer means. Both can be dropped at any moment: the connection goes with them. They
//! distinguish whether the request may have left ([`Sent`]): a question that was never asked has no effect,
//! one whose answer is missing may have.

mod address;
pub mod edge;
pub mod grpc;
mod http_client;
mod sent;
mod small_file;
pub mod tls;

pub use address::{host_and_port, is_nobodys_name, normal_address};
pub use http_client::{HttpClient, HttpQuestion, MAX_PAGE, NoAnswer, TlsUnusable};
pub use sent::Sent;
pub use small_file::read_small_file;
