//! What the system allows this process, and what it uses.

/// Descriptors that this process may have open; none where the system does not say.
pub fn descriptor_limit() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

/// Descriptors that this process has open; none where the system does not say.
pub fn open_descriptors() -> Option<u64> {
    // The directory itself is open while it is read.
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(open.saturating_sub(1))
}

/// `Max open files            1024                 524288               files`: the first number is the one
/// that holds.
fn parse(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_the_one_that_holds() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max processes             63452                63452                processes \n\
            Max open files            1024                 524288               files     \n";
        assert_eq!(parse(limits), Some(1024));
        assert_eq!(parse("Max open files            unlimited            unlimited            files"), None);
        assert_eq!(parse(""), None);
    }
}
