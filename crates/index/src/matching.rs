//! How many hashes two slices share from the start: the innermost loop of every question and of every store.

/// The length of the common prefix.
#[inline]
pub(crate) fn common(a: &[u64], b: &[u64]) -> usize {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { common_avx2(a, b) };
    }
    common_generic(a, b)
}

/// The same loop, compiled for a processor that compares four hashes at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn common_avx2(a: &[u64], b: &[u64]) -> usize {
    common_generic(a, b)
}

#[inline(always)]
#[allow(clippy::inline_always, reason = "it must be compiled as part of the version for each processor")]
fn common_generic(a: &[u64], b: &[u64]) -> usize {
    const STEP: usize = 16;
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut at = 0;
    // Differences of a whole step are or-ed together: no early exit inside, so the compiler uses vectors.
    for (x, y) in a.chunks_exact(STEP).zip(b.chunks_exact(STEP)) {
        let differences = x.iter().zip(y).fold(0, |all, (x, y)| all | (x ^ y));
        if differences != 0 {
            break;
        }
        at += STEP;
    }
    while at < len && a[at] == b[at] {
        at += 1;
    }
    at
}

/// Tells the processor that a line will be needed.
#[inline]
pub(crate) fn prefetch<T>(pointer: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing; any address will do.
    unsafe {
        std::arch::x86_64::_mm_prefetch(pointer.cast::<i8>(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = pointer;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_difference_wherever_it_is() {
        let a: Vec<u64> = (0..100).collect();
        for len in 0..100 {
            assert_eq!(common(&a, &a[..len]), len);
            let mut b = a.clone();
            b[len] ^= 1 << (len % 64);
            assert_eq!(common(&a, &b), len);
            assert_eq!(common_generic(&a, &b), len);
        }
    }
}
