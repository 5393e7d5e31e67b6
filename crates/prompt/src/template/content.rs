//! Whether a template takes content as text or as a list of parts, found in its syntax tree by vLLM's rules.

use minijinja::machinery::{ast, parse};
use minijinja::syntax::SyntaxConfig;

/// How a template takes the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// As text: parts are joined by line ends.
    String,
    /// As a list of parts: text becomes a list of one.
    OpenAi,
}

impl ContentFormat {
    /// As in `--chat-template-content-format`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::OpenAi => "openai",
        }
    }
}

/// Parts, if the template has a loop over the content of a message; text otherwise, and where vLLM would give up.
pub(super) fn detect(source: &str, syntax: SyntaxConfig) -> ContentFormat {
    let Ok(root) = parse(source, "chat_template", syntax) else { return ContentFormat::String };
    let mut found = Found::default();
    found.statement(&root, None);
    if found.loops_over_content() == Some(true) { ContentFormat::OpenAi } else { ContentFormat::String }
}

/// The nodes that matter.
#[derive(Default)]
struct Found<'t> {
    /// With the macro that they are in.
    loops: Vec<(&'t ast::ForLoop<'t>, Option<usize>)>,
    assignments: Vec<&'t ast::Set<'t>>,
    macros: Vec<&'t ast::Macro<'t>>,
    calls: Vec<&'t ast::Call<'t>>,
}

impl<'t> Found<'t> {
    /// `None` where vLLM's search fails: a loop or an assignment has a target that is no name.
    fn loops_over_content(&self) -> Option<bool> {
        let lists = self.names_of_messages()?;
        let mut messages = Vec::new();
        for (node, _) in &self.loops {
            if lists.iter().any(|list| is_variable(&node.iter, list)) {
                messages.push(name(&node.target)?);
            }
        }
        let is_content =
            |expr: &ast::Expr<'_>| messages.iter().any(|message| is_key(expr, message, "content"));
        for (node, inside) in &self.loops {
            let over = match (&node.iter, inside) {
                (iter, _) if is_content(iter) => true,
                (ast::Expr::Var(var), Some(at)) => {
                    self.takes_content(self.macros[*at], &is_content).contains(&var.id)
                }
                (ast::Expr::Var(var), None) => var.id == "content",
                _ => false,
            };
            if over {
                name(&node.target)?;
                return Some(true);
            }
        }
        Some(false)
    }

    /// `messages`, and variables that were set to it or to a part of it.
    fn names_of_messages(&self) -> Option<Vec<&'t str>> {
        let mut names = vec!["messages"];
        let mut next = 0;
        while let Some(&known) = names.get(next) {
            next += 1;
            for assignment in &self.assignments {
                if is_variable(&assignment.expr, known) {
                    let target = name(&assignment.target)?;
                    if !names.contains(&target) {
                        names.push(target);
                    }
                }
            }
        }
        Some(names)
    }

    /// Parameters of a macro that some call hands the content of a message.
    fn takes_content(
        &self,
        node: &'t ast::Macro<'t>,
        is_content: &dyn Fn(&ast::Expr<'_>) -> bool,
    ) -> Vec<&'t str> {
        let mut taken = Vec::new();
        for call in &self.calls {
            if !matches!(&call.expr, ast::Expr::Var(var) if var.id == node.name) {
                continue;
            }
            for (at, argument) in call.args.iter().enumerate() {
                match argument {
                    ast::CallArg::Pos(expr) if is_content(expr) => {
                        taken.extend(node.args.get(at).and_then(name));
                    }
                    ast::CallArg::Kwarg(key, expr) if is_content(expr) => {
                        taken.extend(node.args.iter().filter_map(name).find(|name| name == key));
                    }
                    _ => {}
                }
            }
        }
        taken
    }

    fn statements(&mut self, nodes: &'t [ast::Stmt<'t>], inside: Option<usize>) {
        for node in nodes {
            self.statement(node, inside);
        }
    }

    fn statement(&mut self, node: &'t ast::Stmt<'t>, inside: Option<usize>) {
        match node {
            ast::Stmt::Template(node) => self.statements(&node.children, inside),
            ast::Stmt::EmitExpr(node) => self.expression(&node.expr),
            ast::Stmt::ForLoop(node) => {
                self.loops.push((node, inside));
                self.expression(&node.iter);
                self.optional(node.filter_expr.as_ref());
                self.statements(&node.body, inside);
                self.statements(&node.else_body, inside);
            }
            ast::Stmt::IfCond(node) => {
                self.expression(&node.expr);
                self.statements(&node.true_body, inside);
                self.statements(&node.false_body, inside);
            }
            ast::Stmt::WithBlock(node) => {
                for (_, expr) in &node.assignments {
                    self.expression(expr);
                }
                self.statements(&node.body, inside);
            }
            ast::Stmt::Set(node) => {
                self.assignments.push(node);
                self.expression(&node.expr);
            }
            ast::Stmt::SetBlock(node) => self.statements(&node.body, inside),
            ast::Stmt::AutoEscape(node) => self.statements(&node.body, inside),
            ast::Stmt::FilterBlock(node) => self.statements(&node.body, inside),
            ast::Stmt::Macro(node) => {
                self.macros.push(node);
                self.statements(&node.body, Some(self.macros.len() - 1));
            }
            ast::Stmt::CallBlock(node) => {
                self.call(&node.call);
                self.statements(&node.macro_decl.body, inside);
            }
            ast::Stmt::Do(node) => self.call(&node.call),
            _ => {}
        }
    }

    fn optional(&mut self, node: Option<&'t ast::Expr<'t>>) {
        if let Some(node) = node {
            self.expression(node);
        }
    }

    fn call(&mut self, node: &'t ast::Call<'t>) {
        self.calls.push(node);
        self.expression(&node.expr);
        self.arguments(&node.args);
    }

    fn arguments(&mut self, nodes: &'t [ast::CallArg<'t>]) {
        for node in nodes {
            let (ast::CallArg::Pos(expr)
            | ast::CallArg::Kwarg(_, expr)
            | ast::CallArg::PosSplat(expr)
            | ast::CallArg::KwargSplat(expr)) = node;
            self.expression(expr);
        }
    }

    fn expression(&mut self, node: &'t ast::Expr<'t>) {
        match node {
            ast::Expr::Call(node) => self.call(node),
            ast::Expr::Slice(node) => {
                self.expression(&node.expr);
                for part in [&node.start, &node.stop, &node.step] {
                    self.optional(part.as_ref());
                }
            }
            ast::Expr::UnaryOp(node) => self.expression(&node.expr),
            ast::Expr::BinOp(node) => {
                self.expression(&node.left);
                self.expression(&node.right);
            }
            ast::Expr::Compare(node) => {
                self.expression(&node.expr);
                for operand in &node.ops {
                    self.expression(&operand.expr);
                }
            }
            ast::Expr::IfExpr(node) => {
                self.expression(&node.test_expr);
                self.expression(&node.true_expr);
                self.optional(node.false_expr.as_ref());
            }
            ast::Expr::Filter(node) => {
                self.optional(node.expr.as_ref());
                self.arguments(&node.args);
            }
            ast::Expr::Test(node) => {
                self.expression(&node.expr);
                self.arguments(&node.args);
            }
            ast::Expr::GetAttr(node) => self.expression(&node.expr),
            ast::Expr::GetItem(node) => {
                self.expression(&node.expr);
                self.expression(&node.subscript_expr);
            }
            ast::Expr::List(node) => node.items.iter().for_each(|item| self.expression(item)),
            ast::Expr::Tuple(node) => node.items.iter().for_each(|item| self.expression(item)),
            ast::Expr::Map(node) => node.values.iter().for_each(|value| self.expression(value)),
            _ => {}
        }
    }
}

fn name<'t>(node: &ast::Expr<'t>) -> Option<&'t str> {
    if let ast::Expr::Var(var) = node { Some(var.id) } else { None }
}

/// The variable, or something that a filter, a test or a slice makes of it.
fn is_variable(node: &ast::Expr<'_>, variable: &str) -> bool {
    match node {
        ast::Expr::Filter(node) => node.expr.as_ref().is_some_and(|expr| is_variable(expr, variable)),
        ast::Expr::Test(node) => is_variable(&node.expr, variable),
        ast::Expr::Slice(node) => is_variable(&node.expr, variable),
        node => name(node) == Some(variable),
    }
}

/// A key of the variable, or something that a filter, a test or a slice makes of it.
fn is_key(node: &ast::Expr<'_>, variable: &str, key: &str) -> bool {
    match node {
        ast::Expr::Filter(node) => node.expr.as_ref().is_some_and(|expr| is_key(expr, variable, key)),
        ast::Expr::Test(node) => is_key(&node.expr, variable, key),
        ast::Expr::Slice(node) => is_key(&node.expr, variable, key),
        ast::Expr::GetAttr(node) => node.name == key && name(&node.expr) == Some(variable),
        ast::Expr::GetItem(node) => {
            let named =
                matches!(&node.subscript_expr, ast::Expr::Const(given) if given.value.as_str() == Some(key));
            named && name(&node.expr) == Some(variable)
        }
        _ => false,
    }
}
