//! Generates code from `proto/`, without a protoc on the machine.

use std::path::PathBuf;

use prost::Message as _;

const CONTRACTS: [&str; 5] = [
    "kvplane/v1/plane.proto",
    "kvplane/v1/admin.proto",
    "kvplane/v1/routing.proto",
    "inferencecache/v1alpha1/inferencecache.proto",
    "smg/common.proto",
];

/// What gateways ask an endpoint picker: on a port of its own, and not in reflection.
const GATEWAYS: [&str; 1] = ["envoy/ext_proc.proto"];

/// The engines' own services.
const ENGINES: [&str; 5] = [
    "engines/vllm.proto",
    "engines/sglang.proto",
    "engines/tokenspeed.proto",
    "engines/trtllm.proto",
    "engines/mlx.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root =
        PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").ok_or("no manifest dir")?).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let contracts = protox::compile(CONTRACTS.iter().chain(&ENGINES), [&root])?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("no out dir")?);
    std::fs::write(out.join("descriptors.bin"), contracts.encode_to_vec())?;

    // Messages and the client's side, as they are.
    let client = out.join("client");
    std::fs::create_dir_all(&client)?;
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .extern_path(".smg.grpc.common", "crate::smg")
        .out_dir(&client)
        .compile_fds(contracts)?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_client(false)
        .bytes(".")
        .out_dir(&client)
        .compile_fds(protox::compile(["smg/common.proto"], [&root])?)?;
    tonic_prost_build::configure()
        .build_server(false)
        .bytes(".")
        .out_dir(&client)
        .compile_fds(protox::compile(GATEWAYS, [&root])?)?;

    // The server's side: streamed responses are bytes that were encoded once, for all subscribers.
    let server = out.join("server");
    std::fs::create_dir_all(&server)?;
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".kvplane.v1.SubscribeResponse", "crate::Encoded")
        .extern_path(".kvplane.v1", "crate::kvplane::v1")
        .extern_path(".inferencecache.v1alpha1", "crate::inferencecache")
        .extern_path(".smg.grpc.common", "crate::smg")
        .out_dir(&server)
        .compile_fds(protox::compile(CONTRACTS, [&root])?)?;
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".envoy.service.ext_proc.v3.ProcessingRequest", "crate::Received")
        .extern_path(".envoy.service.ext_proc.v3.ProcessingResponse", "crate::Reply")
        .extern_path(".envoy.service.ext_proc.v3", "crate::envoy")
        .out_dir(&server)
        .compile_fds(protox::compile(GATEWAYS, [&root])?)?;
    // Nobody answers all that an engine does: what is left out is UNIMPLEMENTED.
    tonic_prost_build::configure()
        .build_client(false)
        .generate_default_stubs(true)
        .extern_path(".smg.grpc.common.KvEventBatch", "crate::Encoded")
        .extern_path(".smg.grpc.common", "crate::smg")
        .extern_path(".vllm.grpc.engine", "crate::engines::vllm")
        .extern_path(".sglang.grpc.scheduler", "crate::engines::sglang")
        .extern_path(".tokenspeed.grpc.scheduler", "crate::engines::tokenspeed")
        .extern_path(".trtllm", "crate::engines::trtllm")
        .extern_path(".mlx.grpc.engine", "crate::engines::mlx")
        .out_dir(&server)
        .compile_fds(protox::compile(ENGINES, [&root])?)?;
    Ok(())
}
