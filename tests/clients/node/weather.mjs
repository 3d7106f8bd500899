// The task of the SDKs: a question, a call of a function, its result, an answer, thanks, an answer.

export const URL = process.env.ONWARD_URL;
export const MODEL = process.env.ONWARD_MODEL;
export const TURNS = [
  ["What is the weather in Paris? The codeword is amber.", "It is mild in Paris today: slate."],
  ["Thank you. The codeword is beryl.", "You are welcome."],
];
export const DESCRIPTION = "Return the weather of a city.";
export const PARAMETERS = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

export function getWeather({ city }) {
  if (city !== "Paris") throw new Error(`the city is ${city}`);
  return "21 degrees; the codeword is garnet";
}

export function check(said, expected) {
  if (said?.trim() !== expected) throw new Error(`${JSON.stringify(said)} is not ${expected}`);
}
