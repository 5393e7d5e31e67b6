//! llm-d's `EndpointPickerConfig`: what kvplane does of it, and what it does not.

use serde_json::Value;

use crate::yaml;

/// What is taken from a file, and what is left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LlmdConfig {
    /// The policy that does what its scorers do.
    pub policy: Option<&'static str>,
    /// Tokens per block that its precise scorer expects of engines.
    pub block_size: Option<u32>,
    /// Endpoints behind the first.
    pub fallbacks: Option<usize>,
    /// Uncached tokens from which on a prompt is prefilled elsewhere.
    pub prefill_from: Option<u64>,
    /// Tokens that another endpoint has to hold more, for them to be pulled.
    pub pull_from: Option<u64>,
    /// What was mapped, in words.
    pub mapped: Vec<String>,
    /// What has no effect, in words, with why.
    pub ignored: Vec<String>,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LlmdError(String);

/// Reads a configuration.
pub fn read(text: &str) -> Result<LlmdConfig, LlmdError> {
    let root = yaml::parse(text).map_err(LlmdError)?;
    let kind = root.get("kind").and_then(Value::as_str).unwrap_or_default();
    if kind != "EndpointPickerConfig" {
        return Err(LlmdError(format!("kind is {kind:?}, not EndpointPickerConfig")));
    }
    let mut config = LlmdConfig::default();
    for plugin in list(&root, "plugins") {
        config.plugin(plugin);
    }
    let profiles = list(&root, "schedulingProfiles");
    config.weights(&root, profiles);
    if profiles.len() > 2 {
        config.ignored.push(format!(
            "schedulingProfiles: {} of them; one decision is made, and one more for a prefill",
            profiles.len()
        ));
    }
    for gate in list(&root, "featureGates") {
        let gate = gate.as_str().unwrap_or_default();
        config.ignored.push(format!(
            "featureGates: {gate}; requests are not queued, those with a priority below 0 are shed"
        ));
    }
    let known = ["apiVersion", "kind", "plugins", "schedulingProfiles", "featureGates"];
    for (key, value) in root.as_object().into_iter().flatten() {
        if !known.contains(&key.as_str()) && !value.is_null() {
            config.ignored.push(format!("{key}; kvplane has no such setting"));
        }
    }
    Ok(config)
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

impl LlmdConfig {
    fn plugin(&mut self, plugin: &Value) {
        let kind = text(plugin, "type");
        let empty = Value::Null;
        let parameters = plugin.get("parameters").unwrap_or(&empty);
        let number = |key: &str| parameters.get(key).and_then(Value::as_u64);
        match kind {
            "precise-prefix-cache-scorer" | "precise-prefix-cache-producer" => {
                let nested = parameters.pointer("/tokenProcessorConfig/blockSize").and_then(Value::as_u64);
                let size = nested.or_else(|| number("blockSize")).and_then(|size| u32::try_from(size).ok());
                self.block_size = size.or(self.block_size);
                self.mapped.push(format!("{kind}: kvplane's own index"));
            }
            "max-score-picker" | "weighted-random-picker" | "random-picker" => {
                if let Some(count) = number("maxNumOfEndpoints").filter(|count| *count > 1) {
                    self.fallbacks = usize::try_from(count - 1).ok();
                    self.mapped.push(format!("{kind}: {} fallbacks", count - 1));
                }
                if kind != "max-score-picker" {
                    self.ignored.push(format!("{kind}; the cheapest endpoint is picked, ties by chance"));
                }
            }
            "prefix-based-pd-decider" => {
                if let Some(tokens) = number("nonCachedTokens") {
                    self.prefill_from = Some(tokens);
                    self.mapped.push(format!("{kind}: prefill_from = {tokens}"));
                }
            }
            "p2p-source-producer" => {
                let delta = number("minCachedTokenDelta").unwrap_or(1).max(1);
                self.pull_from = Some(delta);
                self.mapped.push(format!("{kind}: pull_from = {delta}"));
            }
            "always-disagg-multimodal-decider" => {
                self.mapped.push(format!("{kind}: endpoints that encode, by the label llm-d.ai/role"));
            }
            "always-disagg-pd-decider" => {
                self.prefill_from = Some(1);
                self.mapped.push(format!("{kind}: prefill_from = 1"));
            }
            "prefix-cache-scorer" | "approximate-prefix-cache-producer" => {
                self.mapped.push(format!("{kind}: kvplane's own index, exact instead of approximate"));
            }
            // What their weights mean is in the profiles.
            _ if kind.ends_with("-scorer") || kind.ends_with("-filter") => {}
            "pd-profile-handler" | "disagg-profile-handler" | "decode-filter" | "prefill-filter" => {
                self.mapped.push(format!("{kind}: roles by the label llm-d.ai/role"));
            }
            "single-profile-handler" | "header-based-testing-filter" => {}
            other => self.ignored.push(format!("plugin {other:?}; kvplane has no such part")),
        }
    }

    /// Weights of scorers as a policy.
    fn weights(&mut self, root: &Value, profiles: &[Value]) {
        let kind_of = |name: &str| {
            let mut plugins = list(root, "plugins").iter();
            let named = plugins.find(|one| text(one, "name") == name || text(one, "type") == name);
            named.map_or(name, |one| text(one, "type")).to_owned()
        };
        let (mut prefix, mut load, mut session, mut filter) = (0.0, 0.0, 0.0, false);
        for part in profiles.iter().flat_map(|profile| list(profile, "plugins")) {
            let kind = kind_of(text(part, "pluginRef"));
            let weight = part.get("weight").and_then(Value::as_f64).unwrap_or(1.0);
            match kind.as_str() {
                "prefix-cache-scorer" | "precise-prefix-cache-scorer" => prefix += weight,
                "session-affinity-scorer" => session += weight,
                "prefix-cache-affinity-filter" => filter = true,
                "queue-scorer"
                | "kv-cache-utilization-scorer"
                | "running-requests-size-scorer"
                | "active-request-scorer"
                | "token-load-scorer"
                | "load-aware-scorer"
                | "no-hit-lru-scorer" => load += weight,
                kind if kind.ends_with("-scorer")
                    || kind.ends_with("-filter") && !["decode-filter", "prefill-filter"].contains(&kind) =>
                {
                    self.ignored.push(format!("{kind}; kvplane has no such part"));
                }
                _ => {}
            }
        }
        let policy = match (filter, prefix > 0.0, load > 0.0, session > 0.0) {
            (true, ..) => Some("llm_d_filter"),
            (_, true, false, _) => Some("affinity"),
            (_, true, true, _) => Some("work"),
            (_, false, true, _) => Some("least_work"),
            (_, false, false, true) => Some("session"),
            (_, false, false, false) => None,
        };
        if let Some(policy) = policy {
            self.mapped
                .push(format!("weights prefix {prefix}, load {load}, session {session}: policy {policy:?}"));
            if prefix > 0.0 && load > 0.0 && !filter {
                self.ignored.push(
                    "the weights themselves; the policy counts seconds of work, and has none".to_owned(),
                );
            }
        }
        self.policy = policy;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRECISE: &str = "\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: single-profile-handler
- type: precise-prefix-cache-scorer
  parameters: {tokenProcessorConfig: {blockSize: 64}, indexerConfig: {}}
- type: kv-cache-utilization-scorer
- name: queue
  type: queue-scorer
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 3}
- type: predicted-latency-producer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: precise-prefix-cache-scorer, weight: 2.0}
  - {pluginRef: kv-cache-utilization-scorer, weight: 1}
  - {pluginRef: queue}
featureGates: [flowControl]
dataLayer: {sources: []}
";

    #[test]
    fn the_precise_sample() {
        let config = read(PRECISE).unwrap();
        assert_eq!((config.policy, config.block_size, config.fallbacks), (Some("work"), Some(64), Some(2)));
        let ignored = config.ignored.join("\n");
        for part in ["predicted-latency-producer", "flowControl", "dataLayer", "the weights themselves"] {
            assert!(ignored.contains(part), "{part}: {ignored}");
        }
    }

    #[test]
    fn weights_as_policies() {
        let config = |plugins: &str| {
            let plugins: String =
                plugins.split(' ').map(|one| format!("  - {{pluginRef: {one}}}\n")).collect();
            read(&format!("kind: EndpointPickerConfig\nschedulingProfiles:\n- plugins:\n{plugins}")).unwrap()
        };
        for (plugins, policy) in [
            ("prefix-cache-affinity-filter token-load-scorer", "llm_d_filter"),
            ("prefix-cache-scorer", "affinity"),
            ("queue-scorer", "least_work"),
            ("session-affinity-scorer", "session"),
        ] {
            assert_eq!(config(plugins).policy, Some(policy), "{plugins}");
        }
        assert_eq!(config("unheard-of-scorer").ignored.len(), 1);
        let disaggregated = "kind: EndpointPickerConfig\nplugins:\n- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 32}}\n";
        assert_eq!(read(disaggregated).unwrap().prefill_from, Some(32));
        let pulls = "kind: EndpointPickerConfig\nplugins:\n- {type: p2p-source-producer, parameters: {minCachedTokenDelta: 64}}\n- type: always-disagg-pd-decider\n";
        let config = read(pulls).unwrap();
        assert_eq!((config.pull_from, config.prefill_from, config.ignored.len()), (Some(64), Some(1), 0));
    }

    #[test]
    fn other_files_are_refused() {
        assert!(read("kind: Pod").unwrap_err().to_string().contains("\"Pod\""));
        assert!(read("[").is_err());
        assert!(read("").is_err());
    }
}
