// Package cohere translates between Cohere's chats and embeddings (/v2/chat, /v2/embed) and OpenAI's, which is what engines
// speak: requests one way, answers and streams the other. It does no I/O.
//
// What would change the answer and has no counterpart is refused: documents, whose answers have citations, and logprobs.
// citation_options, safety_mode, strict_tools, thinking and priority change nothing.
package cohere
