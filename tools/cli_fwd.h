// Names of the parser's classes, for headers that only mention them: its own headers take long to
// compile.
#pragma once

namespace CLI {

class App;
class Option;
class Validator;

}  // namespace CLI
