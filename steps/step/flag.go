package step

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// Var declares a flag whose value goes through a strict parser when it is set.
func Var[T any](flags *pflag.FlagSet, target *T, name, usage string, parse func(string) (T, error)) {
	flags.Var(&parsed{set: func(s string) (err error) {
		*target, err = parse(s)
		return err
	}}, name, usage)
}

// ListVar declares a flag that may be repeated, each value parsed strictly. As
// an environment variable it is a comma-separated list.
func ListVar[T any](flags *pflag.FlagSet, target *[]T, name, usage string, parse func(string) (T, error)) {
	flags.Var(&parsed{list: true, set: func(s string) error {
		value, err := parse(s)
		if err == nil {
			*target = append(*target, value)
		}
		return err
	}}, name, usage)
}

// parsed is a [pflag.Value] over a parser. It keeps the parser's error for
// [CheckFlags], so that all flags are read whatever one of them holds.
type parsed struct {
	text string
	list bool
	set  func(string) error
	err  error
}

func (p *parsed) Set(s string) error {
	p.text = s
	p.err = errors.Join(p.err, p.set(s))
	return nil
}

func (p *parsed) String() string { return p.text }

func (p *parsed) Type() string {
	if p.list {
		return "list"
	}
	return "string"
}

// EnvName gives the environment variable that a flag falls back to.
func EnvName(flag string) string {
	return "FABRIQUE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// CheckFlags completes the flags and gives all that is wrong with them in one
// error (exit code 2): it sets every flag that the command line left alone from
// its FABRIQUE_… variable, if there is one, and wants a value for each flag
// named in required.
func CheckFlags(flags *pflag.FlagSet, required []string) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		source := "--" + f.Name
		value := os.Getenv(EnvName(f.Name))
		p, isParsed := f.Value.(*parsed)
		if !f.Changed && value != "" && f.Name != "help" {
			source = EnvName(f.Name)
			values := []string{value}
			if isParsed && p.list {
				values = strings.Split(value, ",")
			}
			for _, v := range values {
				if err := flags.Set(f.Name, v); err != nil {
					errs = append(errs, Invalidf("reading %s: %w", source, err))
				}
			}
		}
		if isParsed && p.err != nil {
			errs = append(errs, Invalidf("reading %s: %w", source, p.err))
		}
	})
	var missing []string
	for _, name := range required {
		if flags.Lookup(name).Value.String() == "" {
			missing = append(missing, "--"+name)
		}
	}
	if len(missing) > 0 {
		errs = append(errs, Invalidf("missing %s; --help shows an example", strings.Join(missing, ", ")))
	}
	return errors.Join(errs...)
}
