// Which of an answer's tokens a reward is credited to, what a user put in place of some, and the words that did it.

import { make, plain, signed, tone } from "./dom.js";

/** The parts of the story that speak of some of the tokens; none where nobody spoke of any. */
export function spans(turn, reward) {
  const spoken = outcomesOf(turn, reward).filter(outcome => rangeOf(turn, outcome));
  if (!reward.credits.length && !reward.hints.length && !reward.edits.length) return [];
  return [
    make("h3", "", "What was said of its tokens"),
    make("small", "legend apart", make("span", "credit good", "worth something"), make("span", "credit even", "worth nothing"),
      make("span", "credit bad", "blamed"), make("span", "credit whole", "worth what the turn is"),
      reward.edits.length ? make("del", "", "taken out") : null, reward.edits.length ? make("ins", "", "put in") : null),
    answer(turn, reward),
    make("ol", "words", ...reward.hints.map(hint => words(turn, hint)),
      ...spoken.filter(outcome => !reward.hints.some(hint => hint.outcome_id === outcome.outcome_id))
        .map(outcome => verdict(turn, outcome))),
  ];
}

function outcomesOf(turn, reward) {
  const counts = new Set([...reward.outcome_ids, ...reward.hints.map(hint => hint.outcome_id)]);
  return turn.outcomes.filter(outcome => counts.has(outcome.outcome_id));
}

function rangeOf(turn, outcome) {
  if (outcome.target_range) return outcome.target_range;
  const named = outcome.target_call?.tool_call_id;
  return turn.tool_calls.find(call => call.id === named)?.token_range ?? null;
}

/** Tokens that share a credit are one piece; an edit ends one, too. */
function answer(turn, reward) {
  const box = make("div", "tokens");
  const ends = [...reward.credits, ...reward.edits].flatMap(each => [each.start, each.end]);
  const places = [...new Set([0, ...ends, turn.tokens.length])].sort((one, other) => one - other);
  const puts = place => reward.edits.filter(each => each.start === place && each.text)
    .forEach(each => box.append(make("ins", "", each.text)));
  places.forEach((start, index) => {
    const end = places[index + 1];
    if (end === undefined) return puts(start);
    const gone = reward.edits.some(each => each.start <= start && start < each.end);
    if (!gone) puts(start);
    box.append(piece(turn, reward, start, end, gone));
    if (gone) reward.edits.filter(each => each.end === end && each.text).forEach(each => box.append(make("ins", "", each.text)));
  });
  return box;
}

function piece(turn, reward, start, end, gone) {
  const credit = reward.credits.find(each => each.start <= start && start < each.end);
  const kind = credit ? tone(credit.value) : "whole";
  const made = make(gone ? "del" : "span", `credit ${kind}`, textOf(turn, start, end));
  const why = outcomesOf(turn, reward).filter(outcome => speaksOf(turn, outcome, start)).map(outcome => plain(outcome.name));
  made.title = `tokens ${start} to ${end - 1}: ${signed(credit ? credit.value : reward.value)}`
    + (why.length ? `, by ${[...new Set(why)].join(", ")}` : "");
  return make("span", "", made, credit ? make("sup", "by", signed(credit.value)) : null);
}

function speaksOf(turn, outcome, place) {
  const range = rangeOf(turn, outcome);
  return !range || (range.start <= place && place < range.end);
}

const textOf = (turn, start, end) => turn.tokens.slice(start, end).map(token => token.text ?? `⟨${token.id}⟩`).join("");

function words(turn, hint) {
  const outcome = turn.outcomes.find(each => each.outcome_id === hint.outcome_id);
  return make("li", "", make("span", "quoted", `“${hint.text}”`),
    make("small", "block", `${outcome ? plain(outcome.name) : "said"}, ${about(turn, hint)}`));
}

function verdict(turn, outcome) {
  return make("li", "", make("b", "", plain(outcome.name)), " ", String(outcome.value),
    make("small", "block", about(turn, rangeOf(turn, outcome))));
}

function about(turn, range) {
  if (range.start === 0 && range.end === turn.tokens.length) return "of the whole answer";
  const said = textOf(turn, range.start, range.end);
  return `of tokens ${range.start} to ${range.end - 1}: ${said.length > 80 ? `${said.slice(0, 80)}…` : said}`;
}
