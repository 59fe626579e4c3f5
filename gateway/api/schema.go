package api

import (
	"encoding/json"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"

	"reveille/infra/recipe"
)

// OpenSchema returns the schema of an object that may have these members and others.
func OpenSchema(members map[string]*jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "object", Properties: members}
}

// SchemaOf describes the JSON text of a T.
func SchemaOf[T any]() *jsonschema.Schema {
	s, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.RawMessage](): {},
		reflect.TypeFor[recipe.Options]():  {Types: []string{"object", "null"}},
	}})
	if err != nil {
		panic("api: " + err.Error()) // a mistake in T, which the tests find
	}
	return s
}
