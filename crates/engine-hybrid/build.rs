//! Links this worker and its tests as crate `engine-tch` links its own: cargo hands on no arguments of the linker.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=DEP_ENGINE_TCH_LINK_ARGS");
    let arguments = std::env::var("DEP_ENGINE_TCH_LINK_ARGS").expect("engine-tch names them");
    for argument in arguments.split('\u{1f}').filter(|argument| !argument.is_empty()) {
        println!("cargo::rustc-link-arg={argument}");
    }
}
