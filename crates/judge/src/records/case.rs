//! A case in words. Lists, page titles and checks all give a case the same name.

use history::Case;

/// A case as "12+34 → 32, batch 4, 2 threads": prompt lengths, new tokens if there are any, and every unusual setting. Model
/// and precision are left out.
pub fn in_short(case: &Case) -> String {
    let prompts: Vec<String> = case.prompt_tokens.iter().map(usize::to_string).collect();
    let mut text = match case.new_tokens {
        0 => format!("{} tokens", prompts.join("+")),
        new_tokens => format!("{} → {new_tokens}", prompts.join("+")),
    };
    let mut add = |said: bool, what: String| {
        if said {
            text += &format!(", {what}");
        }
    };
    add(case.batch > 1, format!("batch {}", case.batch));
    add(case.context > 0, format!("context {}", case.context));
    add(case.device != "cpu", case.device.clone());
    add(true, format!("{} thread{}", case.threads, if case.threads == 1 { "" } else { "s" }));
    add(!["", "forced"].contains(&case.decode.as_str()), case.decode.clone());
    add(case.kv_cache == "off", "no KV cache".into());
    add(!case.kv_precision.is_empty(), format!("KV cache in {}", case.kv_precision));
    add(!case.jit, "no JIT".into());
    let algorithm = case.algorithm.as_deref().unwrap_or("denoised");
    add(case.steps.is_some(), format!("{} steps ({algorithm})", case.steps.unwrap_or_default()));
    add(case.autoregressive, "token by token".into());
    text
}

/// A case with model and precision: "a-model f32, 12+34 → 32, batch 4, 2 threads".
pub fn in_full(case: &Case) -> String {
    format!("{} {}, {}", case.model, case.precision, in_short(case))
}

/// The case that arms of an A/B study share: what an optimisation switches is on.
pub fn shared_by_arms(case: &Case) -> Case {
    Case { jit: true, kv_cache: "on".into(), ..case.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_told_by_what_is_not_as_usual() {
        let mut case = Case {
            model: "m".into(),
            precision: "f32".into(),
            device: "cpu".into(),
            prompt_tokens: vec![4, 9],
            new_tokens: 8,
            threads: 2,
            batch: 1,
            jit: true,
            ..Case::default()
        };
        assert_eq!(in_full(&case), "m f32, 4+9 → 8, 2 threads");
        assert_eq!(in_short(&Case { new_tokens: 0, ..case.clone() }), "4+9 tokens, 2 threads");
        (case.batch, case.decode, case.kv_cache) = (4, "greedy".into(), "off".into());
        assert_eq!(in_short(&case), "4+9 → 8, batch 4, 2 threads, greedy, no KV cache");
        (case.kv_cache, case.kv_precision) = ("on".into(), "bf16".into());
        assert_eq!(in_short(&case), "4+9 → 8, batch 4, 2 threads, greedy, KV cache in bf16");
    }
}
