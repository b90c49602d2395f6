use std::fs;

use super::*;

#[test]
fn a_cycle_added_to_a_crate_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let write = |name: &str, text: &str| fs::write(root.join(name), text).unwrap();
    write("lib.rs", "mod day;\nmod night;\n");
    write("day.rs", "pub struct Day;\n");
    write("night.rs", "pub struct Night(crate::day::Day);\n");
    let check = || check_crate(root, "made-up", &[root.join("lib.rs")]).unwrap();
    assert_eq!(check(), []);
    write("day.rs", "use super::night;\npub struct Day(Option<Box<night::Night>>);\n");
    let broken = check();
    assert_eq!(broken.len(), 1);
    assert_eq!(
        broken[0].to_string(),
        "modules of a crate form no cycle: made-up: day uses night (day.rs), night uses day (night.rs); \
         move what both need into a third module, or into the one that is used"
    );
}
