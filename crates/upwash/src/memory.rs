//! How much memory this machine has left, so that a run that needs more is refused before it starts.

use std::path::Path;

/// The memory that this process can still get, in bytes, including swap; `None` where that is unknown.
///
/// Only Linux tells. A control group, such as that of a container or a Slurm job, may allow less than the machine has.
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let machine = in_bytes(&text, "MemAvailable:")? + in_bytes(&text, "SwapFree:").unwrap_or(0);
    Some(control_group().map_or(machine, |group| group.min(machine)))
}

/// What `ulimit -v` still allows this process, if it is set.
fn address_space() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some(address_space_limit(&limits)?.saturating_sub(in_bytes(&status, "VmSize:")?))
}

/// The soft limit in `Max address space   1073741824   unlimited   bytes`; `None` if it is unlimited.
fn address_space_limit(limits: &str) -> Option<u64> {
    let values = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    values.split_whitespace().next()?.parse().ok()
}

/// The value of a line such as `MemAvailable:   23592960 kB`.
fn in_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// What the control group of this process still allows, if it or a group around it has a limit.
fn control_group() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    least_allowance(Path::new("/sys/fs/cgroup"), Path::new(group))
}

/// The least that a group or one of those around it still allows. A group without a limit of its own says `max`.
fn least_allowance(root: &Path, group: &Path) -> Option<u64> {
    let allowance = |group: &Path| {
        let number = |name: &str| {
            let text = std::fs::read_to_string(root.join(group).join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        Some(number("memory.max")?.saturating_sub(number("memory.current")?))
    };
    group.ancestors().filter_map(allowance).min()
}

/// Formats a number of bytes for people.
///
/// ```
/// assert_eq!(upwash::memory::display(3 << 29), "1.50 GiB");
/// assert_eq!(upwash::memory::display(1 << 19), "0.5 MiB");
/// ```
pub fn display(bytes: u64) -> String {
    match bytes as f64 / (1u64 << 20) as f64 {
        mebibytes if mebibytes < 1000.0 => format!("{mebibytes:.1} MiB"),
        mebibytes => format!("{:.2} GiB", mebibytes / 1024.0),
    }
}

/// The error of something that needs more memory than this process can get, or `None` if it fits.
pub(crate) fn shortage(needed: u64) -> Option<String> {
    shortage_of(needed, available().into_iter().chain(address_space()).min())
}

/// As [`shortage`], for several processes together.
pub(crate) fn shortage_of_machine(needed: u64) -> Option<String> {
    shortage_of(needed, available())
}

fn shortage_of(needed: u64, available: Option<u64>) -> Option<String> {
    let available = available.filter(|&available| needed > available)?;
    Some(format!("{} of memory, but only {} are available", display(needed), display(available)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn memory_is_read_from_the_kernel() {
        let text = "MemTotal:       24605096 kB\nMemAvailable:   23592960 kB\nSwapFree:              0 kB\n";
        assert_eq!(in_bytes(text, "MemAvailable:"), Some(23_592_960 << 10));
        assert_eq!(in_bytes(text, "MemFree:"), None);
        if cfg!(target_os = "linux") {
            assert!(available().is_some_and(|bytes| bytes > 1 << 20));
        }
    }

    #[test]
    fn limits_of_the_address_space_are_read() {
        let line = |soft: &str| {
            format!("Max cpu time  unlimited  unlimited  seconds\nMax address space {soft}  unlimited  bytes\n")
        };
        assert_eq!(address_space_limit(&line("1073741824")), Some(1 << 30));
        assert_eq!(address_space_limit(&line("unlimited")), None);
    }

    #[test]
    fn limits_of_surrounding_groups_count() {
        let root = tempfile::tempdir().unwrap();
        let group = |name: &str, max: &str, current: &str| {
            std::fs::create_dir_all(root.path().join(name)).unwrap();
            std::fs::write(root.path().join(name).join("memory.max"), format!("{max}\n")).unwrap();
            std::fs::write(root.path().join(name).join("memory.current"), format!("{current}\n")).unwrap();
        };
        group("job", "1000", "400");
        group("job/step", "max", "300");
        group("job/step/task", "900", "100");
        assert_eq!(least_allowance(root.path(), Path::new("job/step/task")), Some(600));
        assert_eq!(least_allowance(root.path(), Path::new("job/step")), Some(600));
        assert_eq!(least_allowance(root.path(), Path::new("")), None);
    }

    #[test]
    fn shortage_names_both_numbers() {
        assert_eq!(shortage(1), None);
        let error = shortage(u64::MAX).unwrap_or_default();
        assert!(error.is_empty() || error.contains("GiB of memory, but only"), "{error}");
    }
}
