//! Masked diffusion.

use crate::sweep::usual;
use crate::{Axis, Request, Setting, Settings};

/// The default model for denoising.
const DIFFUSION_MODEL: &str = "synthetic:diffucoder-160m";
/// Fills in the axes of a study of masked diffusion.
pub(in super::super) fn complete(request: &mut Request) {
    if request.models == [configs::DEFAULT_MODEL] {
        request.models = vec![DIFFUSION_MODEL.to_owned()];
    }
    request.usual_steps(&[8, 16, 32, 64]);
    request.usual_tokens(64);
    usual(&mut request.prompt_tokens, &[16]);
}

/// The value on the axis of steps for a masked-diffusion model's body as a token-by-token decoder.
pub const TOKEN_BY_TOKEN: &str = "token by token";

/// The cells of a study of denoising: for each length also the same body token by token, at equal tokens.
pub(crate) fn beside_token_by_token(cells: Vec<(Settings, Request)>) -> Vec<(Settings, Request)> {
    let mut all: Vec<(Settings, Request)> = Vec::new();
    for (settings, mut request) in cells {
        let mut body = (settings.clone(), request.clone());
        body.0.insert(Axis::Steps, Setting::Name(TOKEN_BY_TOKEN.to_owned()));
        body.1 = body.1.token_by_token();
        if !all.iter().any(|(place, _)| *place == body.0) {
            all.push(body);
        }
        let asked = (request.denoise.steps.first(), request.new_tokens.first());
        if let (Some(steps), Some(tokens)) = asked
            && steps > tokens
        {
            let reason = format!(
                "{steps} steps for {tokens} new tokens: a step that unmasks nothing is a pass for nothing"
            );
            request.study.refused = Some(reason);
        }
        all.push((settings, request));
    }
    all
}
