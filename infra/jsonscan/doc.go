// Package jsonscan looks into a request body without decoding it.
//
// [Scan] validates a whole JSON object and returns the raw values of a few
// top-level members; [Set] and [Remove] rewrite one member and leave every
// other byte alone; [Members] walks them all, [Blank] takes some out in place,
// and [Walk] reads values inside those that were validated; [Multipart] does for form bodies what Scan does for JSON.
// The body then goes to an engine unchanged. [Marshal] is for new documents.
//
// What counts as valid is what [encoding/json.Valid] accepts, narrowed five
// ways: the document is one object, it is UTF-8 throughout, it nests at most
// [maxDepth] levels, no string holds half of a surrogate pair, and every number
// fits a double. Engines fail at the last two. A byte order mark is refused: the bytes are passed on
// unchanged and engines disagree about it. When a member is repeated the last
// one wins, as in encoding/json and the engines' own parsers. Names compare
// after unescaping, so "mod\u0065l" is model.
//
// Strings are most of a large body (a base64 image is one string), so they are
// skipped eight bytes at a step, or 64 in amd64's AVX2; a document without escapes costs about one
// pass over memory and no allocation. Everything here is a pure function of
// its arguments and safe for concurrent use.
package jsonscan
