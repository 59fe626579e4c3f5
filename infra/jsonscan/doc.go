// Package jsonscan looks into a request body without decoding it.
//
// [Scan] validates a JSON object and returns the raw values of a few top-level members; [Members] goes through all of
// them. [Set] and [Remove] rewrite one member and leave every other byte alone, [Blank] takes some out in place. [Walk]
// reads values inside those that were validated. [Multipart] does for forms what Scan does for JSON. The body then goes
// to an engine unchanged. [Marshal] is for new documents.
//
// Valid is what [encoding/json.Valid] accepts, with three limits: the document is one object, it is UTF-8 throughout,
// and it nests at most [maxDepth] levels. A byte order mark is refused, because the bytes are passed on unchanged and
// engines disagree about it. When a member is repeated the last one wins, as in encoding/json and the engines' own
// parsers. Names compare after unescaping, so "mod\u0065l" is model.
//
// Strings are most of a large body (a base64 image is one string), so they are skipped with [bytes.IndexByte]. Reading
// a document without escapes allocates nothing.
package jsonscan
