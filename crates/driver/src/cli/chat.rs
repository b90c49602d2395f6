//! The flag that puts prompts through the model's chat template.

use clap::Args;
use plan::{Failure, Result};

#[derive(Debug, Clone, Copy, Default, PartialEq, Args)]
pub(crate) struct ChatFlag {
    /// Put every prompt through the model's own chat template, as a message of the user's
    #[arg(long, help_heading = super::help::WORK)]
    pub(crate) chat: bool,
}

impl ChatFlag {
    /// Refuses a chat without a text.
    pub(crate) fn check(self, prompt: Option<&str>) -> Result<()> {
        if self.chat && prompt.is_none() {
            return Err(Failure::usage("--chat needs a text: give --prompt, not --tokens"));
        }
        Ok(())
    }
}
