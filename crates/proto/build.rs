//! Generates code from `proto/`, without a protoc on the machine.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root =
        PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").ok_or("no manifest dir")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let contracts = protox::compile(["kvplane/v1/plane.proto"], [&root])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("no out dir")?);
    std::fs::write(out.join("descriptors.bin"), contracts.encode_to_vec())?;

    // Messages and the client's side, as they are.
    let client = out.join("client");
    std::fs::create_dir_all(&client)?;
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .out_dir(&client)
        .compile_fds(contracts.clone())?;

    // The server's side: streamed responses are bytes that were encoded once, for all subscribers.
    let server = out.join("server");
    std::fs::create_dir_all(&server)?;
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".kvplane.v1.SubscribeResponse", "crate::Encoded")
        .extern_path(".kvplane.v1", "crate::kvplane::v1")
        .out_dir(&server)
        .compile_fds(contracts)?;
    Ok(())
}
