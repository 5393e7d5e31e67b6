//! Measures against what decoding really takes.

use kvplane_access::table;
use kvplane_proto::kvplane::v1 as proto;

use super::*;

const LIMIT: usize = 64 << 20;
const QUERY: &str = "/kvplane.v1.Plane/Query";
const QUERY_STREAM: &str = "/kvplane.v1.Plane/QueryStream";
const REPORT: &str = "/inferencecache.v1alpha1.InferenceCache/ReportCacheState";

fn schema() -> Schema {
    Schema::of(&[kvplane_proto::DESCRIPTORS, tonic_health::pb::FILE_DESCRIPTOR_SET])
}

fn measured(path: &str, message: &[u8]) -> Result<usize, String> {
    let schema = schema();
    let method = schema.method(path).unwrap();
    schema.measure(method, message, LIMIT).map_err(|unfit| format!("{unfit:?}"))
}

#[test]
fn every_method_has_a_shape() {
    let schema = schema();
    for (service, method, _) in table::CALLS {
        // Reflection's own descriptors are tonic's.
        if !service.starts_with("grpc.reflection.") {
            assert!(schema.method(&format!("/{service}/{method}")).is_some(), "{service}/{method}");
        }
    }
    for path in schema.paths() {
        let Some(method) = schema.method(path) else { panic!("{path}") };
        assert!(schema.measure(method, &[], LIMIT).is_ok(), "{path}");
        let size = schema.messages[method.input].size;
        assert!(size < 4096, "{path}: {size}");
    }
}

#[test]
fn the_longest_prompt_fits() {
    let request = proto::QueryRequest { token_ids: vec![150_000; 1 << 20], ..Default::default() };
    assert!(measured(QUERY, &request.encode_to_vec()).unwrap() < LIMIT);
    let request = proto::QueryRequest { block_hashes: vec![u64::MAX; 1 << 20], ..Default::default() };
    assert!(measured(QUERY, &request.encode_to_vec()).unwrap() < LIMIT);
    let keys = proto::BlockKeys {
        keys: vec![proto::ExtraKey { key: Some(proto::extra_key::Key::Text("image".to_owned())) }; 2],
    };
    let request = proto::QueryRequest {
        token_ids: vec![150_000; 1 << 20],
        extra_keys: vec![keys; (1 << 20) / 32],
        ..Default::default()
    };
    assert!(measured(QUERY, &request.encode_to_vec()).unwrap() < LIMIT);
}

#[test]
fn measures_cover_what_decoding_takes() {
    let queries = proto::QueryBatch { queries: vec![proto::QueryRequest::default(); 10_000] };
    let size = measured(QUERY_STREAM, &queries.encode_to_vec()).unwrap();
    assert!(size >= 10_000 * size_of::<proto::QueryRequest>(), "{size}");
    let keys = proto::BlockKeys { keys: vec![proto::ExtraKey { key: None }; 100] };
    let request = proto::QueryRequest { extra_keys: vec![keys; 100], ..Default::default() };
    let size = measured(QUERY, &request.encode_to_vec()).unwrap();
    let least = 100 * (size_of::<proto::BlockKeys>() + 100 * size_of::<proto::ExtraKey>());
    assert!(size >= least, "{size} {least}");
}

#[test]
fn many_empty_elements_are_named_and_refused() {
    // 2 bytes each on the wire.
    let empty_queries = [0x0a, 0].repeat(1 << 20);
    assert_eq!(measured(QUERY_STREAM, &empty_queries), Err("TooLarge(\"queries\")".to_owned()));
    let empty_keys = [0x52, 0].repeat(4 << 20);
    assert_eq!(measured(QUERY, &empty_keys), Err("TooLarge(\"extra_keys\")".to_owned()));
    let report = kvplane_proto::inferencecache::CacheStateUpdate {
        prefixes: vec![kvplane_proto::inferencecache::PrefixEntry::default(); 2 << 20],
        ..Default::default()
    };
    assert_eq!(measured(REPORT, &report.encode_to_vec()), Err("TooLarge(\"prefixes\")".to_owned()));
}

#[test]
fn what_is_not_protobuf_is_refused() {
    for wrong in
        [&[0x0a][..], &[0x0a, 5, 1], &[0x0f], &[0x80; 11], &[0x09, 1, 2], &[0x0a, 0xff, 0xff, 0xff, 0x7f]]
    {
        assert_eq!(measured(QUERY, wrong), Err("Malformed".to_owned()), "{wrong:?}");
    }
    // A field that nobody knows is passed over.
    assert!(measured(QUERY, &[0xfa, 0x01, 1, 7]).is_ok());
}
