//! Records how this binary is built: fairness rule R10 compares it between workers.

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    // `rustc --version` is the only way to learn the full version line.
    #[expect(clippy::disallowed_methods, reason = "build scripts may start the compiler")]
    let rustc = std::process::Command::new(variable("RUSTC")).arg("--version").output();
    let rustc = rustc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!("cargo::rustc-env=BUILD_RUSTC={}", rustc.unwrap_or_else(|_| "unknown rustc".into()));
    println!("cargo::rustc-env=BUILD_PROFILE={}", variable("PROFILE"));
    println!("cargo::rustc-env=BUILD_TARGET={}", variable("TARGET"));
    // Which paths of the machine that builds are replaced in messages changes nothing that is measured.
    let flags = variable("CARGO_ENCODED_RUSTFLAGS");
    let flags: Vec<&str> =
        flags.split('\u{1f}').filter(|flag| !flag.starts_with("--remap-path-prefix")).collect();
    let flags = flags.join(" ");
    println!("cargo::rustc-env=BUILD_RUSTFLAGS={flags}");
    println!("cargo::rustc-env=BUILD_FEATURES={}", variable("CARGO_CFG_TARGET_FEATURE"));
    println!("cargo::rerun-if-changed=build.rs");
}
