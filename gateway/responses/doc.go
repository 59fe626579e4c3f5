// Package responses translates between OpenAI's Responses API and its chat completions, which is what engines speak:
// requests one way, responses and streams the other. It does no I/O.
//
// Requests are read with jsonscan: texts and media go into the chat as they are in the body, and every member of the
// chat is written here, so that an unknown one reaches no engine. The chat is still to be checked as one of a client's
// own.
//
// What has no counterpart is refused where leaving it out would change the response (files, tools that another
// server runs), and ignored where it only concerns how OpenAI itself would run the request (truncation, service_tier,
// …). Tools that a client offers to every model, such as Codex's web_search and custom ones, are left out: the model
// does not see them.
package responses
