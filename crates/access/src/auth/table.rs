//! Every route and every method, with the role that it needs. What is not here is refused, or asked for in
//! vain; a test walks over all there are.

use http::Method;

use super::role::{Needs, Role};

const OPEN: Needs = Needs::Nothing;
const ANY: Needs = Needs::AnyRole;
const READ: Needs = Needs::Role(Role::Read);
const REPORT: Needs = Needs::Role(Role::Report);
const ADMIN: Needs = Needs::Role(Role::Admin);

/// The pages: method, path as the router has it, role. A HEAD is a GET.
pub const PAGES: &[(&str, &str, Needs)] = &[
    // Files without data: what they show they ask for.
    ("GET", "/", OPEN),
    ("GET", "/dashboard/{file}", OPEN),
    ("GET", "/healthz", OPEN),
    // Callers without a role learn whether, not why not.
    ("GET", "/readyz", OPEN),
    ("GET", "/health", OPEN),
    ("GET", "/metrics", READ),
    ("GET", "/openapi.json", READ),
    ("GET", "/v1/status", READ),
    ("GET", "/v1/watch", READ),
    ("GET", "/v1/history", READ),
    ("POST", "/v1/query", READ),
    ("POST", "/v1/pick", READ),
    ("GET", "/v1/receipts", READ),
    ("GET", "/v1/receipts/{id}", READ),
    ("POST", "/v1/receipts/{id}", READ),
    ("POST", "/query", READ),
    ("POST", "/query_by_hash", READ),
    ("GET", "/kv_recover", READ),
    ("GET", "/dump", READ),
    ("GET", "/v1/engines", READ),
    ("GET", "/v1/discover", READ),
    ("POST", "/v1/engines", ADMIN),
    ("DELETE", "/v1/engines/{id}", ADMIN),
    ("GET", "/workers", READ),
    ("POST", "/register", ADMIN),
    ("POST", "/unregister", ADMIN),
    ("GET", "/peers", READ),
    ("POST", "/register_peer", ADMIN),
    ("POST", "/deregister_peer", ADMIN),
    ("POST", "/reopen_logs", ADMIN),
    ("GET", "/snapshot", READ),
    ("POST", "/policy", ADMIN),
    ("PUT", "/policy", ADMIN),
    ("POST", "/probe", ADMIN),
    ("GET", "/server_info", READ),
    ("GET", "/get_loads", READ),
    ("POST", "/flush_cache", ADMIN),
    ("POST", "/start_profile", ADMIN),
    ("POST", "/stop_profile", ADMIN),
];

/// The routes of Dynamo's standalone indexer. Its clients can send no key, so that these may be opened to
/// networks.
const INDEXER_PAGES: &[&str] = &[
    "/query",
    "/query_by_hash",
    "/dump",
    "/workers",
    "/register",
    "/unregister",
    "/peers",
    "/register_peer",
    "/deregister_peer",
    "/reopen_logs",
];

/// Whether a page may be opened to networks.
pub(super) fn may_be_opened(path: Option<&str>) -> bool {
    path.is_some_and(|path| INDEXER_PAGES.contains(&path))
}

/// The methods: service, method, role.
pub const CALLS: &[(&str, &str, Needs)] = &[
    ("grpc.health.v1.Health", "Check", OPEN),
    ("grpc.health.v1.Health", "Watch", OPEN),
    ("grpc.reflection.v1.ServerReflection", "ServerReflectionInfo", ANY),
    ("kvplane.v1.Plane", "Subscribe", READ),
    ("kvplane.v1.Plane", "Status", READ),
    ("kvplane.v1.Plane", "Query", READ),
    ("kvplane.v1.Plane", "QueryStream", READ),
    ("kvplane.v1.Plane", "Tokenize", READ),
    ("kvplane.v1.Routing", "Pick", READ),
    ("kvplane.v1.Routing", "Report", READ),
    ("kvplane.v1.Routing", "ShareBookings", READ),
    ("kvplane.v1.Admin", "Flush", ADMIN),
    ("kvplane.v1.Admin", "StartProfile", ADMIN),
    ("kvplane.v1.Admin", "StopProfile", ADMIN),
    ("kvplane.v1.Admin", "Info", READ),
    ("kvplane.v1.Admin", "Loads", READ),
    ("kvplane.v1.Admin", "Health", READ),
    ("inferencecache.v1alpha1.InferenceCache", "RenderTemplate", READ),
    ("inferencecache.v1alpha1.InferenceCache", "LookupRoute", READ),
    ("inferencecache.v1alpha1.InferenceCache", "LookupPDRoute", READ),
    ("inferencecache.v1alpha1.InferenceCache", "ReportCacheState", REPORT),
    ("inferencecache.v1alpha1.InferenceCache", "PublishEvent", REPORT),
    ("inferencecache.v1alpha1.InferenceCache", "GetCacheState", READ),
    ("inferencecache.v1alpha1.InferenceCache", "StreamCacheEvents", READ),
    ("inferencecache.v1alpha1.InferenceCache", "StreamMetrics", READ),
];

/// Services of engines, which share their methods' names.
pub const ENGINE_SERVICES: [&str; 5] = [
    "vllm.grpc.engine.VllmEngine",
    "sglang.grpc.scheduler.SglangScheduler",
    "tokenspeed.grpc.scheduler.TokenSpeedScheduler",
    "trtllm.TrtllmService",
    "mlx.grpc.engine.MlxEngine",
];

/// The methods of engines: on our own port those that kvplane answers, on a front also those that it passes
/// on.
pub const ENGINE_CALLS: &[(&str, Needs)] = &[
    ("Generate", READ),
    ("GenerateStream", READ),
    ("Embed", READ),
    ("Abort", READ),
    ("HealthCheck", READ),
    ("GetModelInfo", READ),
    ("GetServerInfo", READ),
    ("GetLoad", READ),
    ("GetLoads", READ),
    ("GetTokenizer", READ),
    ("GetKvEventSources", READ),
    ("ListLoadedLoRAAdapters", READ),
    ("IsPaused", READ),
    ("IsSleeping", READ),
    ("SubscribeKvEvents", READ),
    ("ServerReflectionInfo", ANY),
    ("FlushCache", ADMIN),
    ("StartProfile", ADMIN),
    ("StopProfile", ADMIN),
];

/// Packages whose methods are kvplane's own: one without a row is for the strongest role.
const OWN_PACKAGES: [&str; 2] = ["kvplane.", "inferencecache."];

/// What a page needs. A path or method that does not exist is for everybody with a role to find out.
pub(super) fn page(method: &Method, path: Option<&str>) -> Needs {
    let Some(path) = path else { return ANY };
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    let mut rows = PAGES.iter().filter(|(_, row, _)| *row == path).peekable();
    if rows.peek().is_none() {
        // A route without a row: nobody said who may, so only those may who may everything.
        return ADMIN;
    }
    rows.find(|(row, ..)| *row == method).map_or(ANY, |(.., needs)| *needs)
}

/// The methods that a page takes, as a list in words.
pub fn methods_of(path: &str) -> String {
    let methods = PAGES.iter().filter(|(_, row, _)| *row == path).map(|(method, ..)| *method);
    methods.collect::<Vec<_>>().join(" and ")
}

/// What a method needs, by the path of its call. One that does not exist is for everybody with a role to find
/// out.
pub(super) fn call(path: &str) -> Needs {
    let (service, method) = path.strip_prefix('/').unwrap_or(path).split_once('/').unwrap_or_default();
    if ENGINE_SERVICES.contains(&service) {
        return engine_call(method).unwrap_or(ANY);
    }
    let row = CALLS.iter().find(|(of, name, _)| *of == service && *name == method);
    let is_own = OWN_PACKAGES.iter().any(|package| service.starts_with(package));
    row.map_or(if is_own { ADMIN } else { ANY }, |(.., needs)| *needs)
}

/// What a method needs that is called through a front. What an unknown one would do to the engine is not
/// known, so that it is for the strongest role.
pub fn front_call(path: &str) -> Needs {
    if matches!(path, "/grpc.health.v1.Health/Check" | "/grpc.health.v1.Health/Watch") {
        return OPEN;
    }
    engine_call(path.rsplit('/').next().unwrap_or_default()).unwrap_or(ADMIN)
}

fn engine_call(method: &str) -> Option<Needs> {
    ENGINE_CALLS.iter().find(|(name, _)| *name == method).map(|(_, needs)| *needs)
}
