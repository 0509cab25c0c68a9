//! Names of a row's numbers. Saved models name those that they were fitted to, so that a name stands for one
//! meaning for good.

use crate::text;
use crate::tools::KINDS;

const OWN: [&str; 37] = [
    "log_prompt",
    "steps",
    "log_done",
    "log_context",
    "log_mean_output",
    "log_recent_output",
    "log_last_output",
    "log_max_output",
    "output_trend",
    "output_spread",
    "log_mean_input",
    "log_recent_input",
    "log_last_input",
    "log_max_input",
    "output_share",
    "log_seconds",
    "recent_gap",
    "log_mean_gap",
    "log_last_gap",
    "log_max_gap",
    "log_mean_seconds",
    "errors",
    "error_share",
    "recent_errors",
    "steps_since_error",
    "compactions",
    "steps_since_compaction",
    "tools",
    "tool_run",
    "no_tool_steps",
    "steps_since_no_tool",
    "steps_since_long",
    "many_tools",
    "parts",
    "steps_in_part",
    "log_mean_part_steps",
    "log_last_part_steps",
];
const SIBLINGS: [&str; 7] = [
    "siblings",
    "siblings_log_mean",
    "siblings_log_spread",
    "siblings_log_max",
    "siblings_longer_share",
    "siblings_log_left",
    "siblings_steps_left",
];

/// In the order of `Progress::numbers`.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = OWN.map(str::to_owned).into();
    for form in ["share", "recent", "since"] {
        names.extend(KINDS.map(|kind| format!("{form}_{kind}")));
    }
    names.push("last_kind".to_owned());
    for form in ["cue", "recent_cue"] {
        names.extend(text::NAMES.map(|cue| format!("{form}_{cue}")));
    }
    for form in ["observed", "recent_observed"] {
        names.extend(text::OBSERVED.map(|cue| format!("{form}_{}", text::NAMES[cue])));
    }
    let texts = [
        "log_text",
        "log_observation",
        "log_prompt_text",
        "prompt_items",
        "prompt_code",
        "prompt_questions",
    ];
    names.extend(texts.map(str::to_owned));
    names.extend(SIBLINGS.map(str::to_owned));
    names
}
