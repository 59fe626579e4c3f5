package httpapi

import (
	"bytes"
	_ "embed"
)

// openapiFile is an OpenAPI document of all routes, whose version is "VERSION". TestOpenAPI holds it against the
// routes.
//
//go:embed openapi.json
var openapiFile []byte

// openapi serves the description of all routes.
func (s *Server) openapi(r *request) error {
	document := bytes.Replace(openapiFile, []byte(`"VERSION"`), []byte(`"`+s.cfg.Version+`"`), 1)
	r.Send(200, "application/json; charset=utf-8", document)
	return nil
}
