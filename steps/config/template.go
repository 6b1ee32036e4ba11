package config

import _ "embed"

//go:embed template.yaml
var template []byte

// Template gives the commented example that fabrique init writes. It passes the
// strict check as it is.
func Template() []byte { return append([]byte(nil), template...) }
