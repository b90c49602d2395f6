//! `worker-check` on the command line; its findings are tested in the crate `worker-check`.

use crate::common::{Installation, program};

#[test]
fn a_worker_that_holds_is_exit_zero_and_every_phase_a_line() {
    let mock = program("engine-mock").display().to_string();
    let told = Installation::new().run(&format!("worker-check {mock}")).exits(0).stdout;
    for phase in ["--hello", "load", "measure", "answer", "score", "probe", "trace"] {
        let holds = format!("{phase:10}holds: ");
        assert!(told.lines().any(|line| line.starts_with(&holds)), "{phase}: {told}");
    }
    let protocol = format!("protocol {}: 10 phases", protocol::VERSION);
    assert!(told.lines().last().unwrap().contains(&protocol), "{told}");
}

#[test]
fn an_engine_is_checked_by_its_name_with_its_options_and_mistakes_are_told_in_a_sentence() {
    let installation = Installation::new().engine("twice", &[("fault", "twice")]);
    let told = installation.run("worker-check twice").exits(1).stdout;
    assert!(told.contains("a second answer to turn"), "{told}");
    installation.refuses(&[
        ("worker-check no/such/worker", &["no/such/worker"]),
        ("worker-check nobody", &["\"nobody\""]),
        ("worker-check", &["PATH|NAME"]),
        ("worker-check twice --timeout 0", &["--timeout"]),
    ]);
}
