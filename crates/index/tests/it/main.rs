//! The promises of the index, by name, against a model, and with readers beside writers.

mod behaviour;
mod model;
mod stress;
