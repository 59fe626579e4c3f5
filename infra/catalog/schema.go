package catalog

import _ "embed" // the schema

// Schema is the JSON Schema (draft 2020-12) of a models.yaml, for editors. It knows the fields and the form of their
// values; what [Load] checks beyond that, such as names that lead nowhere, it does not.
//
//go:embed models.schema.json
var Schema string
