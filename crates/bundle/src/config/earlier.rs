//! Descriptions of models as runs before protocol 13 kept them: a number of layers, and lists of what some have.

use serde_json::{Value, json};

/// A description in today's form. Each layer gets what all shared.
pub(super) fn upgraded(mut described: Value) -> Value {
    let Some(count) = described["layers"].as_u64() else { return described };
    let form = described["form"].take();
    let listed = |name: &str, index: usize, absent: bool| form[name][index].as_bool().unwrap_or(absent);
    let (main, own) =
        (described["position"].get("rotary").cloned().unwrap_or_default(), form["sliding_rotary"].clone());
    let mlp = json!({
        "width": described["intermediate_size"], "activation": described["activation"],
        "gated": described["gated_mlp"], "bias": described["mlp_bias"],
    });
    let layer = |index: usize| {
        let slides = !form["window"].is_null() && listed("sliding", index, true);
        let rotates = !main.is_null() && !listed("unrotated", index, false);
        json!({
            "window": if slides { form["window"].clone() } else { Value::Null },
            "rotation": rotates.then(|| usize::from(slides && !own.is_null())),
            "feed": { "mlp": mlp },
        })
    };
    let layers: Vec<Value> = (0..count.min(super::read::MAX_LAYERS as u64) as usize).map(layer).collect();
    described["layers"] = layers.into();
    described["rotations"] = [main, own].into_iter().filter(|rotary| !rotary.is_null()).collect();
    if form.is_object() {
        described["form"] = form;
    } else if let Some(fields) = described.as_object_mut() {
        fields.remove("form");
    }
    described
}
