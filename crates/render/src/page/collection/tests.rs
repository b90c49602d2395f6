//! Collections that no run here would make.

use super::*;
use crate::testing::report;

const EVIL: &str = "</script><script>alert(1)</script>\"'<b>";

fn entries() -> Vec<Entry> {
    let mut elsewhere = report();
    elsewhere.environment.cpu = "Z Processor".into();
    (elsewhere.rows[0].state, elsewhere.rows[0].reasons) =
        (State::Struck, vec!["R5: too busy".to_owned().into()]);
    let future = serde_json::json!({"schema": 99});
    vec![
        Entry::new("z/run".into(), elsewhere),
        Entry::new("a/run".into(), report()),
        Entry::new("older".into(), report()),
        Entry::read("future".into(), future),
    ]
}

#[test]
fn each_machine_and_case_has_a_table_with_verdicts_as_they_were_given() {
    let page = html(&entries());
    for told in [
        "3 runs on 2 machines",
        "<h2>A Processor</h2>",
        "<h2>Z Processor</h2>",
        "<h3>a-model f32, 16 → 32, 2 threads</h3>",
        "ort decodes 1.90x as fast as candle",
        "too close to call: ort, candle in load (1.80–2.00x)",
        "its schema is 99, and this program reads",
        "no bf16 kernels",
    ] {
        assert!(page.contains(told), "{told}: {page}");
    }
    assert_eq!(page.matches("class=\"case\"").count(), 2, "runs of one case share a table");
    assert!(page.find("A Processor") < page.find("Z Processor"), "by name");
}

#[test]
fn what_is_struck_or_noisy_looks_so() {
    let page = html(&entries());
    assert!(
        page.contains("<s>candle</s> ✗") && page.contains("<s>156") && page.contains("R5: too busy"),
        "{page}"
    );
    let mut noisy = entries();
    let run = noisy[1].run.as_mut().unwrap();
    run.records[0].noise = Some("others computed".into());
    let page = html(&noisy);
    assert!(page.contains("noisy<small>others computed</small>"), "{page}");
}

#[test]
fn what_comes_from_outside_stays_text_and_the_page_has_one_script_that_fetches_nothing() {
    let mut evil = report();
    evil.environment.cpu = EVIL.into();
    evil.environment.host = EVIL.into();
    evil.model.name = EVIL.into();
    evil.rows[0].framework = EVIL.into();
    evil.rows[2].reasons = vec![EVIL.to_owned().into()];
    evil.comparisons[0].b = EVIL.to_owned();
    let page = html(&[Entry::new(EVIL.into(), evil), Entry::unreadable(EVIL.into(), EVIL.into())]);
    assert_eq!((page.matches("<script").count(), page.matches("</script").count()), (1, 1), "{page}");
    assert!(!page.contains("<b>") && page.contains("data-model=\"&lt;/script&gt;"), "{page}");
    assert!(!page.contains("http") && !page.contains("fetch("), "{page}");
    assert!(!SCRIPT.contains("innerHTML"));
}

#[test]
fn the_page_can_be_read_without_its_script() {
    let page = html(&entries());
    assert!(page.contains("<form id=\"filters\" class=\"filters\" hidden>"), "{page}");
    assert_eq!(page.matches("<tr data-framework=").count(), 12);
    assert_eq!(page.matches(" hidden").count(), 1 + STYLE.matches(" hidden").count(), "only the form");
    for option in ["value=\"a-model\"", "value=\"f32\"", "value=\"candle\""] {
        assert!(page.contains(option), "{option}: {page}");
    }
}

#[test]
fn every_contender_and_every_directory_has_a_line() {
    let csv = csv(&entries());
    let mut lines = csv.lines();
    assert!(lines.next().unwrap().starts_with("directory,schema,reason,time,run,"), "{csv}");
    assert_eq!(lines.count(), 13);
    assert!(csv.contains("future,99,\"its schema is 99"), "{csv}");
    assert!(!csv.contains("results/x"), "{csv}");
}

#[test]
fn nothing_is_a_page_too() {
    assert!(html(&[]).contains("0 runs on 0 machines"));
    assert_eq!(csv(&[]), "");
}
