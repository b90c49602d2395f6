//! A case in words. Lists, page titles and checks all give a case the same name.

use history::Case;

use crate::work;

/// A case as "12+34 → 32, batch 4, 2 threads": prompt lengths, new tokens if there are any, and every unusual setting. Model
/// and precision are left out.
pub fn in_short(case: &Case) -> String {
    let mut text = work::size(case);
    let mut add = |said: bool, what: String| {
        if said {
            text += &format!(", {what}");
        }
    };
    add(case.batch > 1, format!("batch {}", case.batch));
    add(case.context > 0, format!("context {}", case.context));
    add(case.device != "cpu", case.device.clone());
    add(
        true,
        match case.threads {
            0 => "default threads".to_owned(),
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        },
    );
    let (by_token, by_step) = work::unusual(case);
    by_token.into_iter().for_each(|what| add(true, what));
    add(!case.jit, "no JIT".into());
    by_step.into_iter().for_each(|what| add(true, what));
    text
}

/// A case with model and precision: "a-model f32, 12+34 → 32, batch 4, 2 threads".
pub fn in_full(case: &Case) -> String {
    format!("{} {}, {}", case.model, case.precision, in_short(case))
}

/// The case that arms of an A/B study share: the optimisations that they switch are on.
pub fn shared_by_arms(case: &Case) -> Case {
    work::with_cache_on(Case { jit: true, ..case.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_told_by_what_is_not_as_usual() {
        let case = Case {
            model: "m".into(),
            precision: "f32".into(),
            device: "cuda:0".into(),
            prompt_tokens: vec![4, 9],
            threads: 1,
            batch: 4,
            ..Case::default()
        };
        assert_eq!(in_full(&case), "m f32, 4+9 tokens, batch 4, cuda:0, 1 thread, no JIT");
        assert_eq!(in_short(&shared_by_arms(&case)), "4+9 tokens, batch 4, cuda:0, 1 thread");
    }
}
